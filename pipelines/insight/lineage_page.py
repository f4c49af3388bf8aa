"""A page that draws what a version was made from: boxes from left to right, all in one file."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.registry.lookups.descent import Origin

_WIDTH, _GAP, _ROW = 300, 70, 24  # of a column, between two, and between boxes, in pixels
_LINE, _HEAD = 16, 44
_MOST_FACTS = 6
_MOST_CHARACTERS = 44
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#1d2733;background:#f7f8fa}
h1{font-size:20px;margin:0 0 4px}p{margin:0 0 16px;color:#5a6675}
.drawing{overflow-x:auto}
svg text{font:12px system-ui,sans-serif;fill:#1d2733}
svg .title{font-weight:600;font-size:14px}
svg .name{fill:#5a6675;font-family:ui-monospace,monospace;font-size:11px}
svg rect{fill:#fff;stroke:#b8c2cf;rx:6}
svg rect.outside{fill:#fff8e6;stroke:#d9b34a}
svg rect.version{fill:#eaf3ff;stroke:#5a8fd6}
svg path{fill:none;stroke:#8fa0b3;stroke-width:1.5}
details{background:#fff;border:1px solid #d5dbe3;border-radius:6px;margin:8px 0;padding:8px 12px}
summary{cursor:pointer;font-weight:600}
code{font:12px ui-monospace,monospace;color:#5a6675;font-weight:400}
table{border-collapse:collapse;margin:8px 0}
td{padding:2px 14px 2px 0;vertical-align:top;font-size:13px;overflow-wrap:anywhere}
td:first-child{color:#5a6675;white-space:nowrap}
tr.changed td{font-weight:600}
"""


@dataclass(slots=True)
class _Box:
    """Where an origin is drawn."""

    origin: Origin
    column: int
    top: float = 0.0
    reader: "_Box | None" = None  # the box to the left that was made from it

    @property
    def height(self) -> int:
        return _HEAD + _LINE * len(_shown(self.origin)) + 6


def lineage_page(root: Origin) -> str:
    """The tree below `root` as a page of HTML that loads nothing.

    An artifact that several others were made from is drawn once for each of them.
    """
    boxes = list(_boxes(root, 0, None))
    columns = max(box.column for box in boxes) + 1
    bottoms = [0.0] * columns
    for box in boxes:  # depth first: a box stands beside the first of what it was made from
        box.top = bottoms[box.column]
        if box.reader is not None:
            box.top = max(box.top, box.reader.top)
        bottoms[box.column] = box.top + box.height + _ROW
    width = columns * (_WIDTH + _GAP) - _GAP + 2
    drawing = "".join((*map(_line, boxes), *map(_drawn, boxes)))
    details = "".join(_details(origin) for origin in _once(root, set()))
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{_text(root.title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(root.title)}</h1>"
        "<p>What it was made from: each box from those on its right, down to the bytes that came "
        "from outside.</p>"
        f"<div class='drawing'><svg width='{width}' height='{max(bottoms):.0f}' "
        f"viewBox='-1 -1 {width + 2} {max(bottoms):.0f}' role='img'>{drawing}</svg></div>"
        f"{details}</html>\n"
    )


def _boxes(origin: Origin, column: int, reader: _Box | None) -> Iterator[_Box]:
    box = _Box(origin, column, reader=reader)
    yield box
    for each in origin.origins:
        yield from _boxes(each, column + 1, box)


def _once(origin: Origin, seen: set[tuple[str, str]]) -> Iterator[Origin]:
    if (origin.title, origin.fingerprint) in seen:
        return
    seen.add((origin.title, origin.fingerprint))
    yield origin
    for each in origin.origins:
        yield from _once(each, seen)


def _shown(origin: Origin) -> list[str]:
    lines = [f"{name}: {value}" for name, value in origin.facts.items()]
    lines += [f"{path} = {value}" for path, value in origin.changed.items()]
    shown = lines[:_MOST_FACTS]
    if len(lines) > _MOST_FACTS:
        shown.append(f"and {len(lines) - _MOST_FACTS} more below")
    return [line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS - 1]}…"
            for line in shown]  # fmt: skip


def _left(box: _Box) -> int:
    return box.column * (_WIDTH + _GAP)


def _line(box: _Box) -> str:
    if box.reader is None:
        return ""
    x, y = _left(box.reader) + _WIDTH, box.reader.top + _HEAD / 2
    to_x, to_y = _left(box), box.top + _HEAD / 2
    middle = (x + to_x) / 2
    return f"<path d='M{x},{y} C{middle},{y} {middle},{to_y} {to_x},{to_y}'/>"


def _drawn(box: _Box) -> str:
    x, y, origin = _left(box), box.top, box.origin
    kind = "version" if box.reader is None else "outside" if not origin.settings else ""
    parts = [
        f"<rect class='{kind}' x='{x}' y='{y}' width='{_WIDTH}' height='{box.height}'/>",
        f"<text class='title' x='{x + 12}' y='{y + 20}'>{_text(origin.title)}</text>",
        f"<text class='name' x='{x + 12}' y='{y + 36}'>{_text(_short(origin.fingerprint))}</text>",
    ]
    parts += [
        f"<text x='{x + 12}' y='{y + _HEAD + 12 + _LINE * number}'>{_text(line)}</text>"
        for number, line in enumerate(_shown(origin))
    ]
    return "".join(parts)


def _details(origin: Origin) -> str:
    rows = [_row(name, value, is_changed=False) for name, value in origin.facts.items()]
    changed = {path.partition(".")[0] for path in origin.changed}
    rows += [
        _row(path, value, is_changed=path.partition(".")[0] in changed)
        for path, value in origin.settings.items()
    ]
    name = f"<code>{_text(origin.fingerprint)}</code>"
    return (
        f"<details><summary>{_text(origin.title)} {name}</summary>"
        f"<table>{''.join(rows)}</table></details>"
    )


def _row(name: str, value: object, *, is_changed: bool) -> str:
    kind = " class='changed'" if is_changed else ""
    return f"<tr{kind}><td>{_text(name)}</td><td>{_text(value)}</td></tr>"


def _short(fingerprint: str) -> str:
    return fingerprint if len(fingerprint) <= 40 else f"{fingerprint[:39]}…"


def _text(value: object) -> str:
    return html.escape(str(value))
