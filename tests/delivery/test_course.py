"""The pages of docs/course run, from the first cell to the last, and their exercises hold."""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import bert_core as bc

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "course").glob("[0-9]*.md"))
CELL = re.compile(r"^```\{code-cell\} ipython3\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONG = {  # more than about five seconds
    "04-embeddings", "10-next-sentences", "11-pretraining", "12-one-vector", "13-tickets",
    "15-names", "17-freeze-rates-seeds", "19-champion",
}  # fmt: skip
OPTIONS = re.compile(r"\A(?::.*\n)+\n")


def code_of(page: Path) -> list[str]:
    """The code of each cell, without the options above it."""
    return [OPTIONS.sub("", cell) for cell in CELL.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else (), id=page.stem)
        for page in PAGES
    ],
)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the plain backend, which is the specification that the pages explain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    names: dict[str, object] = {"__name__": "__main__"}
    with bc.use_backend("plain"):
        for cell in code_of(page):
            exec(compile(cell, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_has_its_parts(page: Path) -> None:
    """An idea, a picture, an exercise with a tested answer, and what the lecture simplifies."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["The idea", "The picture", "Exercise"]
    assert text.count(":::{admonition} Where the lecture simplifies") == 1
    cells = code_of(page)
    assert any("plt.show()" in cell for cell in cells)
    assert ":tags: [hide-cell]" in text
    assert "assert" in cells[-1]
