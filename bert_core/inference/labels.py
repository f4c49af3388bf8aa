"""What a fine-tuned model says of texts: classes, numbers and choices.

N = texts, C = classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.inference.texts import Text, encode_texts, parts_of, run_batches, with_head
from bert_core.inference.windows import text_windows
from bert_core.model.catalogue import (
    Model,
    MultiLabelClassifier,
    MultipleChoice,
    SequenceClassifier,
    SequenceRegressor,
)
from bert_core.model.task_models import class_names
from bert_core.vocabulary import WordPieceTokenizer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Classified:
    """The class of each text, in the order of the texts."""

    labels: list[str]
    probabilities: NDArray[np.float32]  # [N, C]
    num_truncated: int  # texts longer than the model can read, whose end was left out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assigned:
    """None, some or all classes of each text, in the order of the texts."""

    labels: list[list[str]]  # of each text, the likeliest first
    probabilities: NDArray[np.float32]  # [N, C], independent of each other
    num_truncated: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rated:
    """The number of each text, in the order of the texts."""

    values: NDArray[np.float32]  # [N]
    num_truncated: int


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
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> Classified:
    """The class of each text or pair of texts, with the probabilities of all classes.

    A model that reads windows averages theirs. Raises ValueError for a model with another head, and
    for what is not a list of texts.
    """
    model = with_head(model, SequenceClassifier)
    probabilities, num_truncated = _probabilities(
        model, tokenizer, texts, lambda logits: logits.softmax(dim=-1), batch_tokens, precision
    )
    names = class_names(model)
    return Classified(
        labels=[names[index] for index in probabilities.argmax(dim=-1).tolist()],
        probabilities=probabilities.float().numpy(),
        num_truncated=num_truncated,
    )


def assign_labels(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    *,
    threshold: float = 0.5,
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> Assigned:
    """The classes whose probability reaches `threshold`, of each text or pair of texts.

    A model that reads windows averages theirs. Raises ValueError for a model with another head, a
    threshold outside of [0, 1], and for what is not a list of texts.
    """
    model = with_head(model, MultiLabelClassifier)
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold must lie in [0, 1], got {threshold}")
    probabilities, num_truncated = _probabilities(
        model, tokenizer, texts, torch.sigmoid, batch_tokens, precision
    )
    names = class_names(model)
    best = probabilities.sort(dim=-1, descending=True, stable=True)
    return Assigned(
        labels=[
            [names[i] for i, p in zip(indices, values, strict=True) if p >= threshold]
            for indices, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ],
        probabilities=probabilities.float().numpy(),
        num_truncated=num_truncated,
    )


def _probabilities(
    model: SequenceClassifier | MultiLabelClassifier,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    probable: Callable[[Tensor], Tensor],
    batch_tokens: int | None,
    precision: Precision,
) -> tuple[Tensor, int]:
    """[N, C] means over the windows of each text, and how many texts were cut.

    In float64, so that the sums do not depend on the order of the batches.
    """
    max_tokens, num_truncated = model.config.max_position_embeddings, 0
    means = torch.zeros(len(texts), model.num_labels, dtype=torch.float64)
    for first, part in parts_of(texts):
        windows = text_windows(tokenizer, part, max_tokens, reads_windows=model.reads_windows)
        num_truncated += windows.encoded.num_truncated
        owners = first + torch.from_numpy(windows.texts)
        for members, _, logits in run_batches(
            model, windows.encoded, model, batch_tokens=batch_tokens, precision=precision
        ):
            means.index_add_(0, owners[members], probable(logits).double())
        means[first : first + len(part)] /= torch.from_numpy(windows.num_windows)[:, None]
    return means, num_truncated


def rate(
    model: Model,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    batch_tokens: int | None = None,
    precision: Precision = "float32",
) -> Rated:
    """The number a regression model gives each text or pair of texts.

    Raises ValueError for a model with another head, and for what is not a list of texts.
    """
    model = with_head(model, SequenceRegressor)
    values, num_truncated = _numbers(model, tokenizer, texts, batch_tokens, precision)
    return Rated(values=values.numpy(), num_truncated=num_truncated)


def choose(
    model: Model,
    tokenizer: WordPieceTokenizer,
    prompt: str,
    choices: Sequence[str],
    precision: Precision = "float32",
) -> Chosen:
    """Which of `choices` continues `prompt` best.

    Raises ValueError for a model with another head, and if there are no choices.
    """
    model = with_head(model, MultipleChoice)
    pairs = [(prompt, choice) for choice in choices]
    scores, num_truncated = _numbers(model, tokenizer, pairs, None, precision)
    return Chosen(
        index=int(scores.argmax()),
        probabilities=scores.softmax(dim=0).tolist(),
        num_truncated=num_truncated,
    )


def _numbers(
    model: SequenceRegressor | MultipleChoice,
    tokenizer: WordPieceTokenizer,
    texts: Sequence[Text],
    batch_tokens: int | None,
    precision: Precision,
) -> tuple[Tensor, int]:
    """[N] the head's number for each text, and how many texts were cut."""
    values, num_truncated = torch.empty(len(texts)), 0
    for first, part in parts_of(texts):
        encoded = encode_texts(tokenizer, part, model.config.max_position_embeddings)
        num_truncated += encoded.num_truncated
        for members, _, found in run_batches(
            model, encoded, model, batch_tokens=batch_tokens, precision=precision
        ):
            values[first + members] = found
    return values, num_truncated
