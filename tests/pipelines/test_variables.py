"""Every environment variable of ours is declared, with its meaning, and used."""

import re
from pathlib import Path

from docs._extension.environment import VARIABLES

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bBERTSMITH_[A-Z_]*[A-Z]\b")
FOLDERS = ("bert_core", "pipelines", "flows", "infra", "benchmarks")
PAST = {"log.md", "CHANGELOG.md"}  # they tell what was


def test_what_is_used_is_declared_and_what_is_declared_is_used() -> None:
    used: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            is_text = path.suffix in (".py", ".sh", ".yaml", "") and path.is_file()
            if is_text:
                used |= set(NAME.findall(path.read_text(encoding="utf-8")))
    assert used == VARIABLES.keys()
    assert len(VARIABLES) <= 15


def test_pages_name_only_what_is_declared() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    for page in pages:
        if page.name not in PAST and page.parent.name not in ("decisions", "generated"):
            named = set(NAME.findall(page.read_text(encoding="utf-8")))
            assert named <= VARIABLES.keys(), page.name
