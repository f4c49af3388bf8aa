"""Scores as functions of how often each item counts: what a bootstrap asks for, thousands of times.

A resample of N items is a vector of N whole weights, of which the original is all ones. Most scores
are made of sums over items, and then a resample costs one product of its weights with what each
item adds. The rest is scored anew on the items as often as they count.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.tasks import Answers, Items, TaskFamily

WeightedScore = Callable[[NDArray[np.int64]], float]  # of [N] weights


@runtime_checkable
class WeighsItems(Protocol):
    """A family that knows scores of its own as functions of the items' weights."""

    def weighted(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """By the names of `figures`; with weights of one each gives that figure."""


def weighted_score(
    family: TaskFamily, metric: str, answers: Answers, items: Items
) -> WeightedScore:
    """The figure `metric` of the answers as a function of how often each item counts."""
    known = family.weighted(answers, items) if isinstance(family, WeighsItems) else {}
    if metric in known:
        return known[metric]

    def anew(weights: NDArray[np.int64]) -> float:
        chosen = np.repeat(np.arange(len(items.rows)), weights).tolist()
        values = [answers.values[index] for index in chosen]
        rows = [items.rows[index] for index in chosen]
        return family.figures(Answers(values, 0), Items(rows, items.labels))[metric]

    return anew


def mean(values: ArrayLike) -> WeightedScore:
    """The mean of a value for each item."""
    return ratio(values, np.ones(np.shape(values)))


def ratio(totals: ArrayLike, counts: ArrayLike) -> WeightedScore:
    """The sum of the items' totals over the sum of their counts."""
    both = np.stack([np.asarray(totals, np.float64), np.asarray(counts, np.float64)], axis=1)

    def score(weights: NDArray[np.int64]) -> float:
        total, count = weights @ both
        return float(total / count) if count else 0.0

    return score


def f1(found: ArrayLike, there: ArrayLike, right: ArrayLike) -> WeightedScore:
    """F1 over all that the items' answers found, that was there, and that both have; 0 for none."""
    return ratio(2 * np.asarray(right), np.asarray(found) + np.asarray(there))


def mean_f1(found: NDArray[Any], there: NDArray[Any], right: NDArray[Any]) -> WeightedScore:
    """The mean of F1 over classes, [N, C] each; a class that has nothing to divide by counts 0."""
    num_items, num_classes = found.shape
    table = np.concatenate([2 * right, found + there], axis=1).astype(np.float64)
    assert table.shape == (num_items, 2 * num_classes)

    def score(weights: NDArray[np.int64]) -> float:
        twice_right, total = np.split(weights @ table, 2)
        return float(np.mean(np.divide(twice_right, total, out=np.zeros_like(total),
                                       where=total > 0)))  # fmt: skip

    return score


def of_classes(answered: Sequence[str], expected: Sequence[str]) -> dict[str, WeightedScore]:
    """Accuracy, macro F1 and Matthews correlation, as `class_figures` computes them.

    Of two classes also the F1 of the second.
    """
    names = sorted({*answered, *expected})
    index = {name: place for place, name in enumerate(names)}
    cells = np.array([index[e] * len(names) + index[a]
                      for a, e in zip(answered, expected, strict=True)])  # fmt: skip

    def confusion(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(cells, weights, minlength=len(names) ** 2)
        return counts.reshape(len(names), len(names)).astype(np.float64)

    def macro_f1(weights: NDArray[np.int64]) -> float:
        table = confusion(weights)
        there, found = table.sum(axis=1), table.sum(axis=0)
        occurs = there + found > 0  # scikit-learn averages over classes that it meets
        return float(np.mean(2 * table.diagonal()[occurs] / (there + found)[occurs]))

    def matthews(weights: NDArray[np.int64]) -> float:
        table = confusion(weights)
        there, found, total = table.sum(axis=1), table.sum(axis=0), table.sum()
        spread = (total**2 - found @ found) * (total**2 - there @ there)
        return float((table.trace() * total - found @ there) / np.sqrt(spread)) if spread else 0.0

    right = cells % len(names) == cells // len(names)
    scores = {"eval/accuracy": mean(right), "eval/macro_f1": macro_f1, "eval/matthews": matthews}
    if len(names) == 2:
        found, there = cells % 2 == 1, cells // 2 == 1
        scores["eval/f1"] = f1(found.astype(int), there.astype(int), (found & there).astype(int))
    return scores


def of_numbers(answered: Sequence[float], expected: Sequence[float]) -> dict[str, WeightedScore]:
    """Pearson's and Spearman's correlation and the mean squared error; 0 with a constant."""
    said, true = np.asarray(answered, np.float64), np.asarray(expected, np.float64)
    places = [np.unique(values, return_inverse=True)[1] for values in (said, true)]

    def spearman(weights: NDArray[np.int64]) -> float:
        first, second = (_ranks(each, weights) for each in places)
        return _correlation(first, second, weights)

    return {
        "eval/pearson": lambda weights: _correlation(said, true, weights),
        "eval/spearman": spearman,
        "eval/squared_error": mean((said - true) ** 2),
    }


def _ranks(places: NDArray[np.intp], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """[N] the mean rank of each item among all as often as they count; `places` order them."""
    counts = np.bincount(places, weights)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - counts / 2 + 0.5)[places]
    return ranks


def _correlation(
    first: NDArray[np.float64], second: NDArray[np.float64], weights: NDArray[np.int64]
) -> float:
    total = weights.sum()
    a, b = first - weights @ first / total, second - weights @ second / total
    counted = weights > 0
    if np.ptp(first[counted]) == 0 or np.ptp(second[counted]) == 0:
        return 0.0
    return float(weights @ (a * b) / np.sqrt((weights @ a**2) * (weights @ b**2)))
