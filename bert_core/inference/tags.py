"""The words of texts and their tags."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bert_core.backends.precision import Precision
from bert_core.inference.texts import EncodedTexts, check_texts, run_batches, with_head, with_marks
from bert_core.inference.windows import WordWindow, word_windows
from bert_core.model.catalogue import Model, TokenClassifier
from bert_core.model.task_models import class_names
from bert_core.vocabulary import WordPieceTokenizer

_CHUNK: Final = re.compile(r"\S+")
_OPENING: Final = frozenset("([{<\"'`“‘„«‹¿¡")
_CLOSING: Final = frozenset(")]}>\"'`”’»›.,;:!?…")
# Those that BERT's own tokenizer sets apart (tokenization.py, _is_chinese_char).
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWord:
    """A word of a text, where it is, and its tag."""

    word: str
    begin: int  # index of the word's first character in the text; of a list, in " ".join(words)
    end: int  # index after its last
    label: str
    probability: float


class _Word(NamedTuple):
    text: str
    begin: int
    end: int
    tokens: list[int]


def tag(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str | list[str]],
    *,
    stride: int | None = None,
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> list[list[TaggedWord]]:
    """The words of each text, or of each list of words, with their tags.

    A word has the tag of its first token, as in training. A text longer than the model reads is
    read in windows that advance by `stride` tokens, or by half a window, and each word has its tag
    from the window with most context around it. Words are separated by white space. Brackets,
    quotes and punctuation at the start or end of a word are separate words, and so are characters
    that the tokenizer separates, such as Chinese ones. The words of a list stay as they are, one
    tag each. Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = with_head(model, TokenClassifier)
    alone = ["" if isinstance(text, list) else text for text in texts]
    check_texts(texts if isinstance(texts, str) else alone)
    if not all(isinstance(text, str) for text in alone):
        raise ValueError("texts that are tagged must be single ones, got a pair")
    lists = (text for text in texts if isinstance(text, list))
    if not all(isinstance(word, str) for words in lists for word in words):
        raise ValueError("words that are tagged must be texts, got a list with something else")
    words = [
        _given_words(tokenizer, text) if isinstance(text, list) else list(_words(tokenizer, text))
        for text in texts
    ]
    max_tokens = model.config.max_position_embeddings
    windows = [
        (index, window)
        for index, found in enumerate(words)
        for window in word_windows(tokenizer, [word.tokens for word in found], max_tokens, stride)
    ]
    names = class_names(model)
    tagged: list[dict[int, TaggedWord]] = [{} for _ in texts]
    encoded = sequences_of([window for _, window in windows])
    for members, lengths, logits in run_batches(
        model, encoded, model, batch_tokens=batch_tokens, precision=precision
    ):
        rows = logits.softmax(dim=-1).split(lengths)
        for member, probabilities in zip(members.tolist(), rows, strict=True):
            index, window = windows[member]
            best = probabilities.max(dim=-1)
            for number, place in zip(window.words, window.places, strict=True):
                word = words[index][number]
                tagged[index][number] = TaggedWord(
                    word=word.text,
                    begin=word.begin,
                    end=word.end,
                    label=names[best.indices[place]],
                    probability=float(best.values[place]),
                )
    return [[found[number] for number in sorted(found)] for found in tagged]


def sequences_of(windows: Sequence[WordWindow]) -> EncodedTexts:
    """The windows as what batches are made of."""
    sequences = [window.sequence for window in windows]
    return EncodedTexts(
        sequences=sequences, segment_b_start=[len(each) for each in sequences], num_truncated=0
    )


def _words(tokenizer: WordPieceTokenizer, text: str) -> Iterator[_Word]:
    ids, spans = tokenizer.encode_with_offsets(text)
    numbers = _word_numbers(text)
    starts = [
        index
        for index, (begin, _) in enumerate(spans)
        if index == 0 or numbers[begin] != numbers[spans[index - 1][0]]
    ]
    for first, following in zip(starts, [*starts[1:], len(ids)], strict=True):
        begin, end = spans[first][0], with_marks(text, spans[following - 1][1])
        yield _Word(text[begin:end], begin, end, ids[first:following])


def _given_words(tokenizer: WordPieceTokenizer, words: list[str]) -> list[_Word]:
    """Each as in training: a word without tokens is [UNK]."""
    found, begin = [], 0
    for word, ids in zip(words, tokenizer.encode_batch(words), strict=True):
        found.append(_Word(word, begin, begin + len(word), ids or [tokenizer.unk_id]))
        begin += len(word) + 1
    return found


def _word_numbers(text: str) -> list[int]:
    """For each character the number of the word that it belongs to."""
    numbers, number = [0] * len(text), 0
    for chunk in _CHUNK.finditer(text):
        first, last = _inner(chunk.group())
        for place, character in enumerate(chunk.group()):
            is_joined = first < place < last and not _is_alone(character)
            is_joined = is_joined and not _is_alone(chunk.group()[place - 1])
            number += not is_joined
            numbers[chunk.start() + place] = number
    return numbers


def _inner(chunk: str) -> tuple[int, int]:
    """Where the word in a chunk begins and ends, without the marks around it."""
    first, last = 0, len(chunk)
    while first < last and chunk[first] in _OPENING:
        first += 1
    while last > first and chunk[last - 1] in _CLOSING:
        last -= 1
    if chunk[last : last + 1] == "." and "." in chunk[first:last]:
        last += 1  # of an abbreviation, such as U.S.
    return first, last


def _is_alone(character: str) -> bool:
    """Whether it is always a word by itself, as Chinese characters are."""
    return any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
