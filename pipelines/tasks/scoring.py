"""How answers are scored, by the rules under which the field publishes its figures.

Scores are functions of how often each item counts, which is what a bootstrap asks for, thousands of
times: a resample of N items is a vector of N whole weights, and weights of one give the figure of
all items. They are made of sums over items, so that a resample costs one product of its weights
with what each item adds. scikit-learn's metrics and scipy's correlations define the same
(`tests/pipelines/tasks`), and take a hundred times as long for a resample.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

WeightedScore = Callable[[NDArray[np.int64]], float]  # of [N] weights


def figures_of(scores: Mapping[str, WeightedScore], num_items: int) -> dict[str, float]:
    """The scores of all items, each of which counts once."""
    once = np.ones(num_items, np.int64)
    return {name: score(once) for name, score in scores.items()}


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


def f1(predicted: ArrayLike, actual: ArrayLike, correct: ArrayLike) -> WeightedScore:
    """F1 of counts for each item: what was predicted, what is there, and what both have."""
    return ratio(2 * np.asarray(correct), np.asarray(predicted) + np.asarray(actual))


def mean_f1(predicted: NDArray[Any], actual: NDArray[Any], correct: NDArray[Any]) -> WeightedScore:
    """The mean of F1 over classes, [N, C] each; a class that never occurs counts 0."""
    num_items, num_classes = predicted.shape
    table = np.concatenate([2 * correct, predicted + actual], axis=1).astype(np.float64)
    assert table.shape == (num_items, 2 * num_classes)

    def score(weights: NDArray[np.int64]) -> float:
        twice_right, total = np.split(weights @ table, 2)
        return float(np.mean(np.divide(twice_right, total, out=np.zeros_like(total),
                                       where=total > 0)))  # fmt: skip

    return score


def class_scores(
    answered: Sequence[str], expected: Sequence[str], classes: Sequence[str]
) -> dict[str, WeightedScore]:
    """Accuracy, macro F1 and Matthews correlation of the answered ones of `classes`.

    If they are 0 and 1, also the F1 of 1, as GLUE scores MRPC and QQP; of two other names none is
    known to be the positive one.
    """
    names = sorted(classes)
    index = {name: place for place, name in enumerate(names)}
    cells = np.array([index[e] * len(names) + index[a]
                      for a, e in zip(answered, expected, strict=True)])  # fmt: skip

    def confusion(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(cells, weights, minlength=len(names) ** 2)
        return counts.reshape(len(names), len(names)).astype(np.float64)

    def macro_f1(weights: NDArray[np.int64]) -> float:
        table = confusion(weights)
        actual, predicted = table.sum(axis=1), table.sum(axis=0)
        occurs = actual + predicted > 0  # the average is over the classes that a resample has
        return float(np.mean(2 * table.diagonal()[occurs] / (actual + predicted)[occurs]))

    def matthews(weights: NDArray[np.int64]) -> float:
        table = confusion(weights)
        actual, predicted, total = table.sum(axis=1), table.sum(axis=0), table.sum()
        spread = (total**2 - predicted @ predicted) * (total**2 - actual @ actual)
        return (
            float((table.trace() * total - predicted @ actual) / np.sqrt(spread)) if spread else 0.0
        )

    correct = cells % len(names) == cells // len(names)
    scores = {"eval/accuracy": mean(correct), "eval/macro_f1": macro_f1, "eval/matthews": matthews}
    if names == ["0", "1"]:
        predicted, actual = cells % 2 == 1, cells // 2 == 1
        scores["eval/f1"] = f1(
            predicted.astype(int), actual.astype(int), (predicted & actual).astype(int)
        )
    return scores


def number_scores(answered: Sequence[float], expected: Sequence[float]) -> dict[str, WeightedScore]:
    """Pearson's and Spearman's correlation and the mean squared error; 0 with a constant."""
    predicted, actual = np.asarray(answered, np.float64), np.asarray(expected, np.float64)
    places = [np.unique(values, return_inverse=True)[1] for values in (predicted, actual)]

    def spearman(weights: NDArray[np.int64]) -> float:
        first, second = (_ranks(each, weights) for each in places)
        return _correlation(first, second, weights)

    return {
        "eval/pearson": lambda weights: _correlation(predicted, actual, weights),
        "eval/spearman": spearman,
        "eval/squared_error": mean((predicted - actual) ** 2),
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
    correlation = weights @ (a * b) / np.sqrt((weights @ a**2) * (weights @ b**2))
    return float(np.clip(correlation, -1.0, 1.0))


def class_report(
    answered: Sequence[str], expected: Sequence[str], classes: Sequence[str] = ()
) -> dict[str, Any]:
    """Precision, recall, F1 and count of each class, and the confusion matrix.

    `classes` are shown where no item has them, too. The matrix has a row per expected and a column
    per answered class, in the order of `labels`.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels = sorted({*answered, *expected, *classes})
    columns = precision_recall_fscore_support(expected, answered, labels=labels, zero_division=0.0)
    matrix = confusion_matrix(expected, answered, labels=labels)
    return {"labels": labels, "by_label": by_label(labels, columns), "confusion": matrix.tolist()}


def by_label(labels: Sequence[str], columns: Sequence[Any]) -> list[dict[str, Any]]:
    """A row a class, from scikit-learn's four columns."""
    return [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "items": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]
