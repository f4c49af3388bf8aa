"""The task that docs/own-task.md shows, and rows for it over letters."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.delivery.declared import ROOT
from tests.delivery.pages import blocks

PAGE = ROOT / "docs" / "own-task.md"


def ranking() -> str:
    """The code block of the page, as a reader saves it."""
    (code,) = (
        each.text for each in blocks(PAGE.read_text(encoding="utf-8")) if each.language == "python"
    )
    return code


def row(random: np.random.Generator) -> dict[str, Any]:
    """A query of letters, and candidates of which one alone has an a."""
    best = int(random.integers(3))
    candidates = [" ".join(random.choice(list("bcd"), 3)) for _ in range(3)]
    candidates[best] = f"{candidates[best][:4]}a"
    query = " ".join(random.choice(list("efghijkl"), 4))
    return {"query": query, "candidates": candidates, "best": best}


def write_rows(path: Path, count: int, seed: int = 0) -> Path:
    """So many rows as JSONL."""
    random = np.random.default_rng(seed)
    lines = [json.dumps(row(random)) for _ in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
