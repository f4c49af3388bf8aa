"""Every environment variable of ours is documented, with its meaning, and used."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bBERTSMITH_[A-Z_]*[A-Z]\b")
ROW = re.compile(r"^\| `(BERTSMITH_\w+)` \|", re.MULTILINE)
FOLDERS = ("bert_core", "pipelines", "flows", "infra", "benchmarks")
PAST = {"log.md", "CHANGELOG.md"}  # they tell what was


def test_what_is_used_is_documented_and_what_is_documented_is_used() -> None:
    section = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = set(ROW.findall(section.partition("## Environment variables")[2]))
    used: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".py", ".sh", ".yaml", "") and path.is_file():
                used |= set(NAME.findall(path.read_text(encoding="utf-8")))
    assert used == documented
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    for page in pages:
        if page.name not in PAST and page.parent.name not in ("decisions", "generated"):
            assert set(NAME.findall(page.read_text(encoding="utf-8"))) <= documented, page.name
