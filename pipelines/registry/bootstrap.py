"""The paired bootstrap: the confidence that a system is better than another on the same items.

Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 16; for systems of language
processing Koehn, "Statistical Significance Tests for Machine Translation Evaluation" (2004). Both
systems are scored on the same items of each resample, so what makes an item hard cancels out.
"""

from dataclasses import dataclass

import numpy as np

from bert_core.randomness import integers, random_bits
from pipelines.recipes.recipe import ComparisonSettings
from pipelines.tasks.scoring import WeightedScore


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """By how much a system is better than another one, and with which confidence."""

    score: float
    other: float
    value: float  # by how much better `score` is; negative where it is worse
    low: float  # of the interval that holds the share `confidence` of the resamples
    high: float
    ahead: float  # the share of resamples in which it is better by more than the margin
    margin: float
    num_items: int

    def holds(self, confidence: float) -> bool:
        """Whether it is better by more than the margin in that share of the resamples."""
        return self.value > self.margin and self.ahead >= confidence

    def advantage(self, ours: str, theirs: str) -> tuple[str, float, float, float]:
        """Which is better, `ours` or `theirs`, by how much, and the interval of that."""
        if self.value >= 0:
            return ours, self.value, self.low, self.high
        return theirs, -self.value, -self.high, -self.low


def paired_bootstrap(
    score: WeightedScore,
    other: WeightedScore,
    num_items: int,
    settings: ComparisonSettings,
    *,
    margin: float,
    lower_is_better: bool = False,
) -> Difference:
    """Draw items with replacement, as many as there are, and score both systems on them.

    Which items a resample has depends on the seed, its number and how many items there are, so
    the same two systems differ alike on any machine.
    """
    sign = -1.0 if lower_is_better else 1.0
    places = np.arange(num_items)
    differences = np.empty(settings.resamples)
    for number in range(settings.resamples):
        bits = random_bits(settings.seed, "paired bootstrap", number, places)
        weights = np.bincount(integers(bits, num_items), minlength=num_items)
        differences[number] = sign * (score(weights) - other(weights))
    whole = np.ones(num_items, np.int64)
    both = score(whole), other(whole)
    tail = (1 - settings.confidence) / 2
    low, high = np.quantile(differences, [tail, 1 - tail])
    return Difference(
        score=both[0],
        other=both[1],
        value=sign * (both[0] - both[1]),
        low=float(low),
        high=float(high),
        ahead=float(np.mean(differences > margin)),
        margin=margin,
        num_items=num_items,
    )
