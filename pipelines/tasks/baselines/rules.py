"""Baselines without weights: tags by the form of words, and the sentence that fits best."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from pipelines.tasks import Item, Items
from pipelines.tasks.scoring.spans import best_threshold, score_of

_RARE = 10  # times a word is met at most to say what unknown words are like (Brants, 2000)
_SUFFIXES = (3, 2, 1)
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|(?=\n)|\Z)", re.DOTALL)
_WORD = re.compile(r"\w+")
_TRIED = 2_000  # training questions that the form of the answers is chosen by

Answer = dict[str, object]  # as the family of questions answers


def tags(train: Items, heldout: Items) -> dict[str, list[list[str]]]:
    """The most frequent tag of each word; for an unknown one, that of rare words like it."""
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
    return {"words and shapes": [_tagged(item["words"], usual) for item in heldout.rows]}


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
    """What a word has in common with others, the most informative first."""
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


class _Span(NamedTuple):
    begin: int
    end: int
    share: float  # of the question's words, each by how rare it is, that the sentence has


def best_sentences(train: Items, heldout: Items) -> dict[str, list[Answer]]:
    """The sentence, or the longest part of it without a word of the question.

    Which of them, and from how few common words on there is no answer, the training items say.
    """
    rarity = _Rarity([item["context"] for item in train.rows])
    tried = train.rows[:: math.ceil(len(train.rows) / _TRIED)]
    is_answerable = [bool(item["answers"]) for item in tried]
    found = []
    for is_short in (False, True):
        spans = [_best(item, rarity, is_short=is_short) for item in tried]
        scores = [
            score_of(item["context"][span.begin : span.end], item["answers"]).f1
            for item, span in zip(tried, spans, strict=True)
        ]
        # A sentence of few common words is no answer where some questions have none.
        leads = [-span.share for span in spans]
        threshold, best = best_threshold(leads, scores, is_answerable)
        found.append((sum(scores) / len(scores) if all(is_answerable) else best, threshold))
    is_short = found[1][0] > found[0][0]
    threshold = 0.0 if all(is_answerable) else found[is_short][1]
    values: list[Answer] = []
    for item in heldout.rows:
        span = _best(item, rarity, is_short=is_short)
        values.append(
            {
                "text": item["context"][span.begin : span.end],
                "begin": span.begin,
                "null_lead": -span.share - threshold,
            }
        )
    return {"best sentence": values}


class _Rarity:
    """How rare words are among texts: the logarithm of how many times more texts there are."""

    def __init__(self, texts: Sequence[str]) -> None:
        distinct = set(texts)
        self._size = len(distinct)
        self._counts = Counter(word for text in distinct for word in set(_words(text)))

    def of(self, word: str) -> float:
        """More than 0."""
        return math.log((2 + self._size) / (1 + self._counts[word]))


def _best(item: Item, rarity: _Rarity, *, is_short: bool) -> _Span:
    """The first of the best ones."""
    context = item["context"]
    asked = {word: rarity.of(word) for word in sorted(set(_words(item["question"])))}
    total = sum(asked.values()) or 1.0
    best = max(
        (
            _Span(begin, end, _common(asked, context[begin:end]) / total)
            for begin, end in _sentences(context)
        ),
        key=lambda span: span.share,
    )
    return _without(asked, context, best) if is_short else best


def _common(asked: dict[str, float], sentence: str) -> float:
    there = set(_words(sentence))
    return sum(weight for word, weight in asked.items() if word in there)


def _without(asked: dict[str, float], context: str, span: _Span) -> _Span:
    """The longest run of its words that the question does not have; all where there is none."""
    runs: list[list[re.Match[str]]] = [[]]
    for match in _WORD.finditer(context, span.begin, span.end):
        if match.group().lower() in asked:
            runs.append([])
        else:
            runs[-1].append(match)
    longest = max(runs, key=len)
    return span._replace(begin=longest[0].start(), end=longest[-1].end()) if longest else span


def _sentences(context: str) -> Iterator[tuple[int, int]]:
    for match in _SENTENCE.finditer(context):
        yield match.start(), match.start() + len(match.group().rstrip())


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
