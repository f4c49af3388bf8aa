"""What a fine-tuned model says of texts: classes, numbers, tags and choices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.inference.texts import BATCH_TOKENS, EncodedTexts, Text, encode_texts
from bert_core.model.catalogue import (
    Model,
    MultipleChoice,
    SequenceClassifier,
    SequenceRegressor,
    TokenClassifier,
)
from bert_core.vocabulary import CONTINUATION, WordPieceTokenizer

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classified:
    """The class of each text, in the order of the texts."""

    labels: list[str]
    probabilities: NDArray[np.float32]  # [N, num_labels]
    num_truncated: int  # texts longer than the model can read, whose end was left out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rated:
    """The number of each text, in the order of the texts."""

    values: NDArray[np.float32]  # [N]
    num_truncated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedWord:
    """A word of a text, where it stands, and its tag."""

    word: str
    begin: int  # index of the word's first character in the text
    end: int  # index after its last
    label: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Which of several continuations fits best."""

    index: int
    probabilities: list[float]
    num_truncated: int


def classify(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    batch_tokens: int = BATCH_TOKENS,
    precision: Precision = "float32",
) -> Classified:
    """The class of each text or pair of texts, with the probabilities of all classes.

    Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = _with_head(model, SequenceClassifier)
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    probabilities = torch.empty(len(texts), model.num_labels)
    for members, logits in _outputs(model, encoded, batch_tokens, precision):
        probabilities[members] = logits.softmax(dim=-1)
    names = model.labels or tuple(str(index) for index in range(model.num_labels))
    return Classified(
        labels=[names[index] for index in probabilities.argmax(dim=-1).tolist()],
        probabilities=probabilities.numpy(),
        num_truncated=encoded.num_truncated,
    )


def rate(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    batch_tokens: int = BATCH_TOKENS,
    precision: Precision = "float32",
) -> Rated:
    """The number a regression model gives each text or pair of texts.

    Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = _with_head(model, SequenceRegressor)
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    values = torch.empty(len(texts))
    for members, predictions in _outputs(model, encoded, batch_tokens, precision):
        values[members] = predictions
    return Rated(values=values.numpy(), num_truncated=encoded.num_truncated)


def choose(
    model: Model,
    tokenizer: WordPieceTokenizer,
    prompt: str,
    choices: Sequence[str],
    precision: Precision = "float32",
) -> Chosen:
    """Which of `choices` continues `prompt` best.

    Raises ValueError for a model with another head, and where there are no choices.
    """
    model = _with_head(model, MultipleChoice)
    pairs = [(prompt, choice) for choice in choices]
    encoded = encode_texts(tokenizer, pairs, model.config.max_position_embeddings)
    scores = torch.empty(len(pairs))
    for members, logits in _outputs(model, encoded, BATCH_TOKENS, precision):
        scores[members] = logits
    return Chosen(
        index=int(scores.argmax()),
        probabilities=scores.softmax(dim=0).tolist(),
        num_truncated=encoded.num_truncated,
    )


def tag(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[str],
    batch_tokens: int = BATCH_TOKENS,
    precision: Precision = "float32",
) -> tuple[list[list[TaggedWord]], int]:
    """The words of each text with their tags, and how many texts were cut at their end.

    A word takes the tag of its first piece, as in training; a word that was cut off has none and
    is left out. Words are those of the tokenizer: punctuation stands alone. Raises ValueError for
    a model with another head, and for what is not a list of texts.
    """
    model = _with_head(model, TokenClassifier)
    encoded = encode_texts(tokenizer, texts, model.config.max_position_embeddings)
    names = model.labels or tuple(str(index) for index in range(model.num_labels))
    tagged: list[list[TaggedWord]] = [[] for _ in texts]
    outputs = _token_outputs(model, encoded, batch_tokens, precision)
    for members, lengths, logits in outputs:
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


def _with_head(model: Model, wanted: type[M]) -> M:
    if not isinstance(model, wanted):
        raise ValueError(
            f"this needs a model with the head {wanted.head_name}, got {model.head_name}"
        )
    return model


def _outputs(
    model: Model, encoded: EncodedTexts, batch_tokens: int, precision: Precision
) -> list[tuple[Tensor, Tensor]]:
    """For each batch: which texts it holds, and one row of outputs for each."""
    return [
        (members, output)
        for members, _, output in _token_outputs(model, encoded, batch_tokens, precision)
    ]


@torch.inference_mode()
def _token_outputs(
    model: Model, encoded: EncodedTexts, batch_tokens: int, precision: Precision
) -> list[tuple[Tensor, tuple[int, ...], Tensor]]:
    """For each batch: which texts it holds, their lengths in tokens, and the model's output."""
    with model.precision(precision):
        return [
            (
                torch.from_numpy(members),
                tokens.lengths,
                model(tokens.to(model.device)).float().cpu(),
            )
            for members, tokens in encoded.batches(batch_tokens)
        ]
