"""A page that draws what a version was made from: boxes from left to right, all in one file."""

import html
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.registry.lineage import Origin

_WIDTH, _GAP, _ROW = 300, 70, 24  # of a column, between two, and between boxes, in pixels
_LINE, _HEAD = 16, 44
_MOST_FACTS = 6
_MOST_CHARACTERS = 40
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

    @property
    def height(self) -> int:
        return _HEAD + _LINE * len(_shown(self.origin)) + 6


_Key = tuple[str, str]  # what tells origins apart: title and fingerprint


def lineage_page(root: Origin) -> str:
    """What `root` was made from as a page of HTML that loads nothing; each artifact is drawn once.

    An artifact stands to the right of all that were made from it.
    """
    boxes = _placed(root)
    columns = max(box.column for box in boxes.values()) + 1
    width = columns * (_WIDTH + _GAP) - _GAP + 2
    bottom = max(box.top + box.height for box in boxes.values()) + _ROW
    lines = "".join(
        _line(box, boxes[_key(each)]) for box in boxes.values() for each in box.origin.origins
    )
    drawing = lines + "".join(_drawn(box, is_root=box.origin is root) for box in boxes.values())
    details = "".join(_details(box.origin) for box in boxes.values())
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{_text(root.title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(root.title)}</h1>"
        "<p>What it was made from: each box from those on its right that a line leads to, down to "
        "the bytes that came from outside.</p>"
        f"<div class='drawing'><svg width='{width}' height='{bottom:.0f}' "
        f"viewBox='-1 -1 {width + 2} {bottom:.0f}' role='img'>{drawing}</svg></div>"
        f"{details}</html>\n"
    )


def _placed(root: Origin) -> dict[_Key, _Box]:
    """A box for each origin, in the order in which they are met."""
    boxes: dict[_Key, _Box] = {}
    readers: dict[_Key, list[_Key]] = {}
    for origin, column, reader in _walked(root, 0, None):
        box = boxes.setdefault(_key(origin), _Box(origin, column))
        box.column = max(box.column, column)
        if reader is not None:
            readers.setdefault(_key(origin), []).append(_key(reader))
    bottoms: dict[int, float] = {}
    for key, box in sorted(boxes.items(), key=lambda each: each[1].column):
        beside = min((boxes[reader].top for reader in readers.get(key, ())), default=0.0)
        box.top = max(bottoms.get(box.column, 0.0), beside)
        bottoms[box.column] = box.top + box.height + _ROW
    return boxes


def _walked(
    origin: Origin, column: int, reader: Origin | None
) -> Iterator[tuple[Origin, int, Origin | None]]:
    yield origin, column, reader
    for each in origin.origins:
        yield from _walked(each, column + 1, origin)


def _key(origin: Origin) -> _Key:
    return origin.title, origin.fingerprint


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


def _line(reader: _Box, box: _Box) -> str:
    x, y = _left(reader) + _WIDTH, reader.top + _HEAD / 2
    to_x, to_y = _left(box), box.top + _HEAD / 2
    middle = to_x - _GAP / 2  # long lines run beside the boxes of the columns between
    return f"<path d='M{x},{y} C{middle},{y} {middle},{to_y} {to_x},{to_y}'/>"


def _drawn(box: _Box, *, is_root: bool) -> str:
    x, y, origin = _left(box), box.top, box.origin
    kind = "version" if is_root else "" if origin.settings else "outside"
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
