"""How answers are scored, by the rules under which the field publishes its figures.

Scores are functions of how often each item counts, which is what a bootstrap asks for, thousands of
times: a resample of N items is a vector of N whole weights, and weights of one give the figure of
all items. They are made of sums over items, so that a resample costs one product of its weights
with what each item adds. scikit-learn's metrics and scipy's correlations define the same
(`tests/pipelines/tasks`), and take a hundred times as long for a resample.

Answers to questions are scored as by SQuAD's official evaluation, Rajpurkar et al. (2016), section
6, and (2018) for questions without an answer: they are held against every reference without case,
punctuation, articles and extra white space, and the best one counts. An answer to a question
without one is right where it is empty.

Entities are scored as by `conlleval`, Tjong Kim Sang and De Meulder (2003): an entity is right
where its first word, its last word and its type are. Tags are `O`, or a prefix of IOB1, IOB2, BIOES
or BILOU, `-` and a type.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipelines.errors import UserError

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


def f1(found: ArrayLike, there: ArrayLike, right: ArrayLike) -> WeightedScore:
    """F1 over all that the items' answers found, that was there, and that both have; 0 for none."""
    return ratio(2 * np.asarray(right), np.asarray(found) + np.asarray(there))


def mean_f1(found: NDArray[Any], there: NDArray[Any], right: NDArray[Any]) -> WeightedScore:
    """The mean of F1 over classes, [N, C] each; a class that never occurs counts 0."""
    num_items, num_classes = found.shape
    table = np.concatenate([2 * right, found + there], axis=1).astype(np.float64)
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

    If there are two, also the F1 of the second, as GLUE scores MRPC and QQP, whose classes are 0
    and 1.
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
        there, found = table.sum(axis=1), table.sum(axis=0)
        occurs = there + found > 0  # the average is over the classes that a resample has
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


def number_scores(answered: Sequence[float], expected: Sequence[float]) -> dict[str, WeightedScore]:
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
    correlation = weights @ (a * b) / np.sqrt((weights @ a**2) * (weights @ b**2))
    return float(np.clip(correlation, -1.0, 1.0))


def class_report(answered: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 and count of each class, and the confusion matrix.

    The matrix has a row per expected and a column per answered class, in the order of `labels`.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels = sorted({*answered, *expected})
    columns = precision_recall_fscore_support(expected, answered, labels=labels, zero_division=0.0)
    matrix = confusion_matrix(expected, answered, labels=labels)
    return {"labels": labels, "by_label": by_label(labels, columns), "confusion": matrix.tolist()}


def by_label(labels: Sequence[str], columns: Sequence[Any]) -> list[dict[str, Any]]:
    """A row a class, from scikit-learn's four columns."""
    return [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "items": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]


_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)  # ASCII's alone, as published
OUTSIDE = "O"
_BEGINS = ("B", "S", "U")  # U is what BILOU calls S
_ENDS = ("E", "S", "L", "U")
_PUBLISHED = re.compile(r"[BIESLUM]-.+")
_ALMOST = re.compile(r"[BIESLUM][-_].+|.+[-_][BIESLUM]", re.IGNORECASE)
_LETTERS = frozenset("BIESLUM")


class SpanScore(NamedTuple):
    """Of one answer, each 0 to 1."""

    exact: float
    f1: float


def score_of(answered: str, references: Sequence[str]) -> SpanScore:
    """The best score of an answer over the references; none of them means there is no answer.

    References that are nothing but articles and punctuation count for nothing, as published.
    """
    whole = [reference for reference in references if normalized(reference)] or [""]
    return SpanScore(
        max(float(normalized(answered) == normalized(each)) for each in whole),
        max(_f1(answered, each) for each in whole),
    )


def normalized(answer: str) -> str:
    """An answer without case, ASCII punctuation, English articles and extra white space."""
    lowered = "".join(each for each in answer.lower() if each not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", lowered).split())


def best_threshold(
    differences: Sequence[float], scores: Sequence[float], is_answerable: Sequence[bool]
) -> tuple[float, float]:
    """The threshold of "no answer" with the best sum of scores, and the mean score with it.

    `differences` say how much better "no answer" was than each answer; where it is above the
    threshold the answer is empty, which scores 1 for a question without an answer and else 0.
    """
    total = best = float(sum(not answerable for answerable in is_answerable))
    threshold = min(differences, default=0.0) - 1.0
    order = sorted(range(len(differences)), key=differences.__getitem__)
    for place, index in enumerate(order):
        total += scores[index] if is_answerable[index] else -1.0
        is_last_of_alike = (
            place + 1 == len(order) or differences[order[place + 1]] > differences[index]
        )
        if is_last_of_alike and total > best:
            best, threshold = total, differences[index]
    return threshold, best / max(1, len(differences))


def _f1(answered: str, reference: str) -> float:
    said, true = normalized(answered).split(), normalized(reference).split()
    if not said or not true:
        return float(said == true)
    num_common = (Counter(said) & Counter(true)).total()
    if num_common == 0:
        return 0.0
    precision, recall = num_common / len(said), num_common / len(true)
    return 2 * precision * recall / (precision + recall)


class Entity(NamedTuple):
    """A run of words of one type."""

    first: int  # word
    last: int
    type: str


def name_entities(tags: Iterable[str]) -> bool:
    """Whether the tags mark entities: all are `O` or have a published prefix; else they are words'.

    Raises UserError for tags of which some have such a prefix, and for those that only look so.
    """
    different = sorted({*tags} - {OUTSIDE})
    others = [tag for tag in different if not _PUBLISHED.fullmatch(tag)]
    if not others:
        return True
    is_mixed = len(others) < len(different)
    if is_mixed or {*others} <= _LETTERS or any(map(_ALMOST.fullmatch, others)):
        raise UserError(
            f"the tags {', '.join(others[:5])} are of no scheme that entities are scored by: write "
            "O outside of them, and inside B-TYPE and I-TYPE (IOB), or the tags of BIOES or BILOU; "
            "tags of single words, such as parts of speech, have no such prefix at all"
        )
    return False


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of a sentence, in order.

    An entity begins where its tag says so, after another type, after none, and after a tag that
    ends one: so IOB1's `I-` after nothing opens one, and its `B-` parts two of a type.
    """
    first, before_type, before_prefix = 0, "", ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        begins = prefix in _BEGINS or kind != before_type or before_prefix in _ENDS
        if before_type and (begins or not kind):
            yield Entity(first, index - 1, before_type)
        if kind and (begins or not before_type):
            first = index
        before_type, before_prefix = kind, prefix


def entity_scores(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> dict[str, WeightedScore]:
    """Precision, recall and F1 over all entities; 0 where there is nothing to divide by."""
    sentences = [
        (set(entities(said)), set(entities(true)))
        for said, true in zip(answered, expected, strict=True)
    ]
    found, there = (np.array([len(each) for each in side]) for side in zip(*sentences, strict=True))
    right = np.array([len(said & true) for said, true in sentences])
    precision, recall = ratio(right, found), ratio(right, there)
    return {
        "eval/precision": precision,
        "eval/recall": recall,
        "eval/f1": lambda weights: _harmonic_mean(precision(weights), recall(weights)),
    }


def entity_report(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """A row a type of entity, in alphabetical order: precision, recall, F1 and their number."""
    said, true = (
        {(number, entity) for number, tags in enumerate(side) for entity in entities(tags)}
        for side in (answered, expected)
    )
    found, there, right = (
        Counter(entity.type for _, entity in each) for each in (said, true, said & true)
    )
    rows = []
    for kind in sorted({*found, *there}):
        precision = right[kind] / found[kind] if found[kind] else 0.0
        recall = right[kind] / there[kind] if there[kind] else 0.0
        scores = {"precision": precision, "recall": recall, "f1": _harmonic_mean(precision, recall)}
        rows.append({"label": kind, **scores, "items": there[kind]})
    return rows


def _harmonic_mean(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0
