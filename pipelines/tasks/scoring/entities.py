"""Entities of tagged sentences, and their precision, recall and F1 as `conlleval` counts them.

Tjong Kim Sang and De Meulder (2003): an entity is right where its first word, its last word and its
type are. Tags are IOB1, IOB2 or BIOES (`-` parts the prefix from the type); a tag without a prefix
is a type of its own, each word a piece of the chunk before it if that is alike.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

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


def entity_figures(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 over all entities; 0 where there is nothing to divide by."""
    found, there, right = _counts(answered, expected)
    precision, recall, f1 = _scores(found.total(), there.total(), right.total())
    return {"eval/precision": precision, "eval/recall": recall, "eval/f1": f1}


def entity_report(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """A row a type of entity, in alphabetical order: precision, recall, F1 and their number."""
    found, there, right = _counts(answered, expected)
    rows = []
    for kind in sorted({*found, *there}):
        precision, recall, f1 = _scores(found[kind], there[kind], right[kind])
        rows.append(
            {"label": kind, "precision": precision, "recall": recall, "f1": f1,
             "items": there[kind]}
        )  # fmt: skip
    return rows


def _parted(tag: str) -> tuple[str, str]:
    """Prefix and type; both empty outside of entities."""
    if tag == OUTSIDE:
        return "", ""
    prefix, dash, kind = tag.partition("-")
    if dash and prefix in ("B", "I", "E", "S", "L", "U", "M"):
        return prefix, kind
    return "I", tag


def _counts(
    answered: Sequence[Sequence[str]], expected: Sequence[Sequence[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    found: Counter[str] = Counter()
    there: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for said, true in zip(answered, expected, strict=True):
        said_entities, true_entities = set(entities(said)), set(entities(true))
        found.update(entity.type for entity in said_entities)
        there.update(entity.type for entity in true_entities)
        right.update(entity.type for entity in said_entities & true_entities)
    return found, there, right


def _scores(num_found: int, num_there: int, num_right: int) -> tuple[float, float, float]:
    precision = num_right / num_found if num_found else 0.0
    recall = num_right / num_there if num_there else 0.0
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0
