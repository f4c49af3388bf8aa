"""Pages of the repository that lie outside docs/ and are part of the site: results and notices."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PAGES = ("benchmarks/results/*.md", "CHANGELOG.md", "SECURITY.md", "THIRD-PARTY-NOTICES.md")
_LINK = re.compile(r"\]\((?:\.\./)+(benchmarks/results/[\w.-]+\.md|[A-Z-]+\.md)")


def pages() -> Iterator[tuple[str, str]]:
    """(path below the root, text) of each."""
    for pattern in _PAGES:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8").replace("](docs/", "](../")
            # A page of benchmarks/results lies as far below docs/generated as below the root.
            yield path.relative_to(ROOT).as_posix(), text.replace("](../../docs/", "](../../../")


def linked(docname: str, text: str) -> str:
    """A page's text with its links to these files leading to their pages.

    The front page takes the place of the README.
    """
    up = "../" * docname.count("/")
    text = _LINK.sub(rf"]({up}generated/\1", text)
    return text.replace(f"]({up}generated/README.md", f"]({up}index.md")
