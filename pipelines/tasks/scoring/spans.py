"""Exact match and F1: of answers as SQuAD's official evaluation, of entities as `conlleval`.

Rajpurkar et al. (2016), section 6, and (2018) for questions without an answer: answers are held
against every reference without case, punctuation, articles and extra white space, and the best one
counts. An answer to a question without one is right where it is empty.

Tjong Kim Sang and De Meulder (2003): an entity is right where its first word, its last word and its
type are. Tags are `O`, or a prefix of IOB1, IOB2, BIOES or BILOU, `-` and a type.
"""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.config.errors import UserError
from pipelines.tasks.scoring.weighted import WeightedScore, ratio

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
