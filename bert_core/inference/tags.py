"""The words of texts and their tags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bert_core.backends.precision import Precision
from bert_core.inference.asking import run_batches, with_head
from bert_core.inference.texts import EncodedTexts, check_texts
from bert_core.inference.windows import WordWindow, word_windows
from bert_core.model.catalogue import Model, TokenClassifier
from bert_core.vocabulary import CONTINUATION, WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWord:
    """A word of a text, where it stands, and its tag."""

    word: str
    begin: int  # index of the word's first character in the text
    end: int  # index after its last
    label: str
    probability: float


class _Word(NamedTuple):
    begin: int
    end: int
    pieces: list[int]


def tag(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str],
    *,
    stride: int | None = None,
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> list[list[TaggedWord]]:
    """The words of each text with their tags.

    A word takes the tag of its first piece, as in training. A text longer than the model reads is
    read in windows that advance by `stride` tokens, or by half a window, and each word takes its
    tag where most of what surrounds it is seen. Words are those of the tokenizer: punctuation
    stands alone. Raises ValueError for a model with another head, and for what is not a list of
    texts.
    """
    model = with_head(model, TokenClassifier)
    check_texts(texts)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("texts that are tagged must be single ones, got a pair")
    words = [list(_words(tokenizer, text)) for text in texts]
    max_tokens = model.config.max_position_embeddings
    windows = [
        (index, window)
        for index, found in enumerate(words)
        for window in word_windows(tokenizer, [word.pieces for word in found], max_tokens, stride)
    ]
    names = model.labels or tuple(str(index) for index in range(model.num_labels))
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
                    word=texts[index][word.begin : word.end],
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
    starts = [
        index
        for index, piece in enumerate(ids)
        if not tokenizer.id_to_piece(piece).startswith(CONTINUATION)
    ]
    for first, following in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield _Word(spans[first][0], spans[following - 1][1], ids[first:following])
