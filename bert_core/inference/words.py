"""The words of a text, and what their tags name: entities with their places in the text."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

# Unicode's punctuation, which ends at U+1E95F, and what ASCII has for brackets and quotes.
_MARKS: Final = frozenset(
    letter
    for letter in map(chr, range(0x1E960))
    if unicodedata.category(letter).startswith("P") or letter in "<>`"
)
# As ranges: they are looked through for every letter.
_FIRST_MARKS: Final = sorted(letter for letter in _MARKS if chr(ord(letter) - 1) not in _MARKS)
_LAST_MARKS: Final = sorted(letter for letter in _MARKS if chr(ord(letter) + 1) not in _MARKS)
_MARK_RANGES: Final = "".join(
    f"{re.escape(first)}-{re.escape(last)}"
    for first, last in zip(_FIRST_MARKS, _LAST_MARKS, strict=True)
)
# Ideographs, as BERT's own tokenizer sets them apart (tokenization.py, _is_chinese_char), and the
# marks of Chinese and Japanese, which stand between words without blanks.
_ALONE: Final = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
    "\u3001-\u3003\u3008-\u3011\u3014-\u301f"
    "\uff01-\uff03\uff05-\uff0a\uff0c\uff0f\uff1a\uff1b\uff1f\uff3b\uff3d\uff5b\uff5d\uff5f-\uff64"
)
# What marks at its ends and those are separated from; else one character. The time is linear:
# behind its first letter a word goes back once, from the end of what has no blanks.
_WORD: Final = re.compile(
    rf"[^\s{_ALONE}{_MARK_RANGES}](?:[^\s{_ALONE}]*[^\s{_ALONE}{_MARK_RANGES}])?|\S"
)
_OUTSIDE: Final = "O"
_BEGINS: Final = ("B", "S", "U")  # U is what BILOU calls S
_ENDS: Final = ("E", "S", "L", "U")
_PREFIXED: Final = re.compile(r"[BIESLUM]-.+")


def places_of_words(text: str) -> list[tuple[int, int]]:
    """Of each word its first character and the one after its last, as `bc.tag` separates them."""
    return [match.span() for match in _WORD.finditer(text)]


class Entity(NamedTuple):
    """A run of words of one type."""

    first: int  # word
    last: int
    type: str


def have_prefixes(tags: Sequence[str]) -> bool:
    """Whether the tags are those of entities: each is `O`, or has a prefix of IOB, BIOES or BILOU.

    If not, they are those of single words.
    """
    return all(tag == _OUTSIDE or _PREFIXED.fullmatch(tag) for tag in tags)


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """The entities of a sentence, in order.

    An entity begins where its tag says so, after another type, after none, and after a tag that
    ends one: so IOB1's `I-` after nothing opens one, and its `B-` parts two of a type.
    """
    first, before_type, before_prefix = 0, "", ""
    for index, tag in enumerate([*tags, _OUTSIDE]):
        prefix, _, kind = tag.partition("-")
        begins = prefix in _BEGINS or kind != before_type or before_prefix in _ENDS
        if before_type and (begins or not kind):
            yield Entity(first, index - 1, before_type)
        if kind and (begins or not before_type):
            first = index
        before_type, before_prefix = kind, prefix


def spans_of(
    tags: Sequence[str], places: Sequence[tuple[int, int]], *, are_entities: bool
) -> list[dict[str, Any]]:
    """`start`, `end` and `label` of each entity, or of each word that has a tag without prefix.

    `places` are those of the words, in characters; `end` is the one after the last.
    """
    named = (
        entities(tags)
        if are_entities
        else (Entity(word, word, tag) for word, tag in enumerate(tags) if tag != _OUTSIDE)
    )
    return [
        {"start": places[each.first][0], "end": places[each.last][1], "label": each.type}
        for each in named
    ]
