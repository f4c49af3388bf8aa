"""The pages that people read, and what is code on them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.delivery.declared import ROOT

DOCS = ROOT / "docs"
_RECORDS = ("decisions", "generated")  # of what was so at their date; made from the code


def user_pages() -> list[Path]:
    """README and the site's pages, without records of the past and what is generated."""
    pages = (
        page
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).parts[0] not in _RECORDS and page != DOCS / "log.md"
    )
    return [ROOT / "README.md", *sorted(pages)]


def name_of(page: Path) -> str:
    """How a page is called in the name of a test."""
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block: its language, its text, and the reason where the page says it is not run."""

    language: str
    text: str
    not_run: str | None


_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>.+?) -->\n+)?"
    r"^(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)$",
    flags=re.MULTILINE | re.DOTALL,
)


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page's text."""
    return [
        Block(found["language"].split(" ")[0], found["text"], found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def typed_lines(page: Path) -> Iterator[str]:
    """The lines of its blocks that are no Python, each continued line as one."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language not in ("python", "{code-cell}"):
            for line in block.text.replace("\\\n", " ").splitlines():
                yield line.removeprefix("$ ")


def mentions(page: Path) -> list[str]:
    """What stands between backticks in its sentences."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
