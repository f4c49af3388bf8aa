"""What a model was made from, as a page of HTML that loads nothing."""

import html

from pipelines.registry.lineage import LineageNode

_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:24px;color:#1d2733;background:#f7f8fa}
h1{font-size:20px;margin:0 0 4px}p{margin:0 0 16px;color:#5a6675}
ul{list-style:none;margin:0 0 0 10px;padding:0 0 0 18px;border-left:2px solid #b8c2cf}
body>ul{margin:0;padding:0;border:0}
details{background:#fff;border:1px solid #d5dbe3;border-radius:6px;margin:8px 0;padding:8px 12px}
details.outside{background:#fff8e6;border-color:#d9b34a}
summary{cursor:pointer;font-weight:600}
code{font:12px ui-monospace,monospace;color:#5a6675;font-weight:400}
table{border-collapse:collapse;margin:8px 0}
td{padding:2px 14px 2px 0;vertical-align:top;font-size:13px;overflow-wrap:anywhere}
td:first-child{color:#5a6675;white-space:nowrap}
tr.changed td{font-weight:600}
"""


def lineage_page(root: LineageNode) -> str:
    """The tree below `root`, each artifact once, with its settings."""
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        f"<title>{_text(root.title)}</title><style>{_STYLE}</style>"
        f"<h1>{_text(root.title)}</h1>"
        "<p>What it was made from, down to the bytes that came from outside. Settings other than "
        "the defaults are bold.</p>"
        f"<ul>{_branch(root, set())}</ul></html>\n"
    )


def _branch(origin: LineageNode, shown: set[tuple[str, str]]) -> str:
    key = origin.title, origin.fingerprint
    name = f"{_text(origin.title)} <code>{_text(origin.fingerprint)}</code>"
    if key in shown and origin.settings:
        return f"<li>{name}, see above</li>"
    shown.add(key)
    changed = {path.partition(".")[0] for path in origin.changed}
    rows = [_row(fact, value, is_changed=False) for fact, value in origin.facts.items()]
    rows += [
        _row(path, value, is_changed=path.partition(".")[0] in changed)
        for path, value in origin.settings.items()
    ]
    kind = "" if origin.settings or origin.origins else " class='outside'"
    below = "".join(_branch(each, shown) for each in origin.origins)
    return (
        f"<li><details{kind}><summary>{name}</summary><table>{''.join(rows)}</table></details>"
        f"{f'<ul>{below}</ul>' if below else ''}</li>"
    )


def _row(name: str, value: object, *, is_changed: bool) -> str:
    kind = " class='changed'" if is_changed else ""
    return f"<tr{kind}><td>{_text(name)}</td><td>{_text(value)}</td></tr>"


def _text(value: object) -> str:
    return html.escape(str(value))
