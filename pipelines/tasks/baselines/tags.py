"""Tags by the look of each word alone: the word itself, or its ending and its shape."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain

from pipelines.tasks import Items

NAME = "words and shapes"
_RARE = 10  # times a word is met at most to say what unknown words are like (Brants, 2000)
_SUFFIXES = (3, 2, 1)


def tags(train: Items, heldout: Items) -> dict[str, list[list[str]]]:
    """The most frequent tag of each word; an unknown one goes by what rare words like it have."""
    words = Counter(chain.from_iterable(item["words"] for item in train.rows))
    counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for item in train.rows:
        for place, (word, tag) in enumerate(zip(item["words"], item["tags"], strict=True)):
            counts[word][tag] += 1
            counts["lower", word.lower()][tag] += 1
            if words[word] <= _RARE:
                for key in _likenesses(word, place):
                    counts[key][tag] += 1
            counts[None][tag] += 1
    usual = {key: min(count, key=lambda tag: (-count[tag], tag)) for key, count in counts.items()}
    return {NAME: [_tagged(item["words"], usual) for item in heldout.rows]}


def _tagged(words: Sequence[str], usual: dict[Hashable, str]) -> list[str]:
    return [
        next(
            usual[key]
            for key in (word, ("lower", word.lower()), *_likenesses(word, place), None)
            if key in usual
        )
        for place, word in enumerate(words)
    ]


def _likenesses(word: str, place: int) -> Iterator[Hashable]:
    """What a word has in common with others, the most telling first."""
    shape = _shape(word, place)
    for size in _SUFFIXES:
        if len(word) > size:
            yield shape, word[-size:].lower()
    yield ("shape", *shape)


def _shape(word: str, place: int) -> tuple[str, bool]:
    """How a word is written, and whether it is the first, where capitals say least."""
    if any(letter.isdigit() for letter in word):
        kind = "digits"
    elif word.isupper() and len(word) > 1:
        kind = "upper"
    elif word[:1].isupper():
        kind = "capitalised"
    elif word.islower():
        kind = "lower"
    else:
        kind = "other"
    return kind, place == 0
