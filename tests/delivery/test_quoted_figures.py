"""Figures that a page quotes: each is in the result file that the page links to beside it."""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from tests.delivery.declared import ROOT
from tests.delivery.pages import name_of, prose, user_pages

_RESULT = re.compile(r"benchmarks/results/[\w.-]+\.md")
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
# A figure has decimals or a unit. Counts such as "500 labels" describe what was measured.
_FIGURE = re.compile(rf"(?<![\w.,])({_NUMBER})(?![\w])( ?%| (?:ms|s|MiB|GiB|MB|GB)\b)?")
_NOT_TEXT = re.compile(r"\]\([^)]*\)|`[^`]*`|\d{4}-\d\d-\d\d")
_SCALES = [Decimal(scale) for scale in ("1", "0.001", "1000", "0.000001", "100")]  # s and ms, %, M


def quotations(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each paragraph, item or row of a page that links to results, and the paths of these.

    A table belongs to the paragraph above it where that ends with a colon.
    """
    above: list[str] = []  # what the paragraph before a table links to
    for paragraph in re.split(r"\n\s*\n", prose(page)):
        if above and paragraph.startswith("|"):
            yield paragraph, above
        for part in re.split(r"\n(?=[-|#*]|\d+\. )", paragraph):
            results = _RESULT.findall(part)
            if results:
                yield part, results
        above = _RESULT.findall(paragraph) if paragraph.endswith(":") else []


def figures(text: str) -> Iterator[str]:
    """The numbers with decimals or a unit."""
    for number, unit in _FIGURE.findall(_NOT_TEXT.sub("", text)):
        if "." in number or unit:
            yield number.replace(",", "")


def is_among(figure: str, measured: set[Decimal]) -> bool:
    """Whether a measured number, in these or other units, rounds to the figure."""
    half = Decimal(1).scaleb(-len(figure.partition(".")[2])) / 2
    return any(
        abs(number * scale - Decimal(figure)) <= half for number in measured for scale in _SCALES
    )


def missing(text: str, results: str) -> list[str]:
    """The figures of a text that the results do not have."""
    measured = {
        Decimal(number.replace(",", ""))
        for number in re.findall(rf"(?<![\w.]){_NUMBER}(?:e[+-]\d+)?", results)
    }
    return [figure for figure in figures(text) if not is_among(figure, measured)]


@pytest.mark.parametrize("page", user_pages(), ids=name_of)
def test_quoted_figures_are_in_their_results(page: Path) -> None:
    for text, paths in quotations(page):
        results = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in paths)
        assert missing(text, results) == [], f"not in {', '.join(paths)}: {text}"


def test_a_figure_that_was_not_measured_is_noticed() -> None:
    results = "| base | 1657.3 ms | 68.14 ± 1.2 | 0.4135 |\n| large | 9,412,000 |"
    assert (
        missing("It takes 1.66 s and 9.4 M, 68.1 ± 1.2 points, 41%, with 500 labels.", results)
        == []
    )
    assert missing("It takes 1.76 s and reaches 68.2 points and 43%.", results) == [
        "1.76", "68.2", "43",
    ]  # fmt: skip
