"""Exact match and F1 of answers, as SQuAD's official evaluation computes them.

Rajpurkar et al. (2016), section 6, and (2018) for questions without an answer: answers are held
against every reference without case, punctuation, articles and extra white space, and the best one
counts. An answer to a question without one is right where it is empty.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)  # ASCII's alone, as published


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
