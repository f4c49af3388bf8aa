"""Entities of tagged sentences, and their precision, recall and F1 as `conlleval` counts them.

Tjong Kim Sang and De Meulder (2003): an entity is right where its first word, its last word and its
type are. Tags are IOB1, IOB2 or BIOES (`-` parts the prefix from the type); a tag without a prefix
is a type of its own, each word a piece of the chunk before it if that is alike.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.tasks.scoring.weighted import WeightedScore, ratio

OUTSIDE = "O"
_BEGINS = ("B", "S", "U")  # U is what BILOU calls S
_ENDS = ("E", "S", "L", "U")


class Entity(NamedTuple):
    """A run of words of one type."""

    first: int  # word
    last: int
    type: str


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of a sentence, in order.

    An entity begins where its tag says so, after another type, after none, and after a tag that
    ends one: so IOB1's `I-` after nothing opens one, and its `B-` parts two of a type.
    """
    first, before_type, before_prefix = 0, "", ""
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, kind = _parted(tag)
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
        "eval/f1": lambda weights: _f1(precision(weights), recall(weights)),
    }


def entity_report(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """A row a type of entity, in alphabetical order: precision, recall, F1 and their number."""
    found: Counter[str] = Counter()
    there: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for said, true in zip(answered, expected, strict=True):
        said_entities, true_entities = set(entities(said)), set(entities(true))
        found.update(entity.type for entity in said_entities)
        there.update(entity.type for entity in true_entities)
        right.update(entity.type for entity in said_entities & true_entities)
    rows = []
    for kind in sorted({*found, *there}):
        precision = right[kind] / found[kind] if found[kind] else 0.0
        recall = right[kind] / there[kind] if there[kind] else 0.0
        scores = {"precision": precision, "recall": recall, "f1": _f1(precision, recall)}
        rows.append({"label": kind, **scores, "items": there[kind]})
    return rows


def _f1(precision: float, recall: float) -> float:
    total = precision + recall
    return 2 * precision * recall / total if total else 0.0


def _parted(tag: str) -> tuple[str, str]:
    """Prefix and type; both empty outside of entities."""
    if tag == OUTSIDE:
        return "", ""
    prefix, dash, kind = tag.partition("-")
    if dash and prefix in ("B", "I", "E", "S", "L", "U", "M"):
        return prefix, kind
    return "I", tag
