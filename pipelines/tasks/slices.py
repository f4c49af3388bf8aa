"""The score of each part of the items, so that a good mean does not hide a bad part."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_core.randomness import integers, random_bits
from pipelines.tasks.scoring import WeightedScore

_RESAMPLES: Final = 1000
_INTERVAL: Final = (0.025, 0.975)


class Slice(NamedTuple):
    """The items with one value of a column: their number, score, and its 95% interval."""

    value: str
    items: int
    score: float
    low: float
    high: float


def slices_of(score: WeightedScore, values: Sequence[str]) -> list[Slice]:
    """A row for each value that an item has, the worst score first.

    The interval is that of a bootstrap over the slice's own items (Efron and Tibshirani, 1993,
    chapter 13): with few of them it is wide. Equal items and values give equal intervals on any
    machine.
    """
    rows = []
    for value in sorted(set(values)):
        members = np.flatnonzero(np.array(values, dtype=object) == value)

        def of(counts: np.ndarray, members: np.ndarray = members) -> float:
            weights = np.zeros(len(values), np.int64)
            weights[members] = counts
            return score(weights)

        places = np.arange(len(members))
        resampled = [
            of(
                np.bincount(
                    integers(random_bits(0, "slice", number, places), len(members)),
                    minlength=len(members),
                )
            )
            for number in range(_RESAMPLES)
        ]
        low, high = np.quantile(resampled, _INTERVAL)
        every = of(np.ones(len(members), np.int64))
        rows.append(Slice(value, len(members), every, float(low), float(high)))
    return sorted(rows, key=lambda row: (row.score, row.value))
