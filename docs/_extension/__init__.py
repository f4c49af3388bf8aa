"""The pages of the site that are made from the code, written before Sphinx reads any page.

They lie in docs/generated, which git ignores: nothing on them is written a second time by hand.
"""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from . import command_line, environment, outside, presets, python_interface, settings

_PAGES = {
    "settings.md": settings.page,
    "presets.md": presets.page,
    "command-line.md": command_line.page,
    "python.md": python_interface.page,
    "environment.md": environment.page,
}


def setup(app: Any) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("builder-inited", lambda app: write_pages(Path(app.srcdir) / "generated"))
    app.connect("source-read", _prepare)
    app.connect("autodoc-process-docstring", _escape_bars)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(folder: Path) -> None:
    """Write every generated page, and take away what is none any more."""
    wanted = {folder / name: page() for name, page in _PAGES.items()}
    wanted |= {folder / name: text for name, text in outside.pages()}
    for path in folder.rglob("*.md"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        is_there = path.is_file() and path.read_text(encoding="utf-8") == text
        if not is_there:  # Sphinx reads again what is newer
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def _prepare(app: Any, docname: str, source: list[str]) -> None:
    """Lead links to pages outside docs/ to their place, and leave out patterns of no page."""
    text = outside.linked(docname, source[0])
    names = app.env.found_docs
    source[0] = re.sub(
        r"^[\w/-]+\*\n",
        lambda line: line[0] if any(fnmatch(name, line[0].strip()) for name in names) else "",
        text,
        flags=re.MULTILINE,
    )


def _escape_bars(app: Any, what: str, name: str, of: Any, options: Any, lines: list[str]) -> None:
    """`|x|` is an absolute value in a docstring, and a substitution to docutils."""
    lines[:] = [
        "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)
        for parts in (re.split(r"(`[^`]*`)", line) for line in lines)
    ]
