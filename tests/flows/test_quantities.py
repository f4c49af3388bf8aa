"""Quantities read as people say them."""

import pytest

from flows.reporting.progress_line import duration, number


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (4.21, "4.2 s"), (59.96, "1 min 00 s"), (125, "2 min 05 s")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"), [(12345, "12,345"), (0.42134, "0.4213"), (12345.6, "12,346"), (3, "3")]
)
def test_numbers(value: float, said: str) -> None:
    assert number(value) == said
