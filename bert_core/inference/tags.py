"""The words of texts and their tags."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bert_core.backends.precision import Precision
from bert_core.inference.asking import run_batches, with_head
from bert_core.inference.texts import encode_texts
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


def tag(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str],
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> tuple[list[list[TaggedWord]], int]:
    """The words of each text with their tags, and how many texts were cut at their end.

    A word takes the tag of its first piece, as in training; a word that was cut off has none and
    is left out. Words are those of the tokenizer: punctuation stands alone. Raises ValueError for
    a model with another head, and for what is not a list of texts.
    """
    model = with_head(model, TokenClassifier)
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    names = model.labels or tuple(str(index) for index in range(model.num_labels))
    tagged: list[list[TaggedWord]] = [[] for _ in texts]
    for members, lengths, logits in run_batches(
        model, encoded, model, batch_tokens=batch_tokens, precision=precision
    ):
        rows = logits.softmax(dim=-1).split(lengths)
        for index, probabilities in zip(members.tolist(), rows, strict=True):
            best = probabilities[1:-1].max(dim=-1)  # without [CLS] and [SEP]
            tagged[index] = [
                TaggedWord(
                    word=texts[index][begin:end],
                    begin=begin,
                    end=end,
                    label=names[best.indices[first]],
                    probability=float(best.values[first]),
                )
                for first, begin, end in _words(tokenizer, texts[index])
                if first < len(best.values)
            ]
    return tagged, encoded.num_truncated


def _words(tokenizer: WordPieceTokenizer, text: str) -> Iterator[tuple[int, int, int]]:
    """Of each word: the index of its first piece, and its span of characters."""
    ids, spans = tokenizer.encode_with_offsets(text)
    starts = [
        index
        for index, piece in enumerate(ids)
        if not tokenizer.id_to_piece(piece).startswith(CONTINUATION)
    ]
    for first, following in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield first, spans[first][0], spans[following - 1][1]
