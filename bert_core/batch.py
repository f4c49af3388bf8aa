"""Batches to train on: ragged sequences with what is to be predicted.

B = sequences, T = tokens of all of them, M = masked (or otherwise predicted) tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bert_core.ragged import OfTensors, RaggedBatch

IGNORED_LABEL = -100  # what `torch` and `transformers` use for "no label here"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PretrainingBatch(OfTensors):
    """Tokens with the masked positions and their labels, and whether B followed A."""

    tokens: RaggedBatch
    masked_positions: Tensor  # [M] int64, indices into the T tokens
    masked_labels: Tensor  # [M] int64, the original ids
    next_sentence_labels: Tensor | None = None  # [B] int64, 0 = B followed A, 1 = random

    @property
    def counts(self) -> dict[str, int]:
        """Over how many items each loss of this batch sums, known without asking the device."""
        counts = {"mlm": self.masked_labels.numel()}
        if self.next_sentence_labels is not None:
            counts["nsp"] = self.next_sentence_labels.numel()
        return counts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledBatch(OfTensors):
    """Tokens with the labels of a task.

    labels, by task: sequence classification [B] int64; several classes a text [B, C] float, 0 or
    1; regression [B] float; token classification [T] int64, `IGNORED_LABEL` where a token has
    none; multiple choice [B / C] int64 over C successive sequences each; span prediction [B, 2]
    int64, first and last token of the answer counted from the sequence's start, both 0 where
    there is none; sentence embedding, over N first texts, N second ones and any number more, [N]
    float for cosines, [N] int64 topics or [N, 2] int64 numbers of first and second texts. A
    language model predicts the next token and takes no labels: `labels` then holds [T] targets from
    `next_token_labels`.
    """

    tokens: RaggedBatch
    labels: Tensor
    num_labels: int  # labels that count

    @classmethod
    def from_arrays(cls, tokens: RaggedBatch, labels: ArrayLike | Tensor) -> Self:
        """Build the batch and count, on the host, the labels that are not `IGNORED_LABEL`.

        [B, C] booleans count one label each; they and floats become float32, integers and [B]
        booleans int64. Of [B, 2] spans every row is one label. Raises ValueError for [B, C] floats
        outside [0, 1].
        """
        values = labels if isinstance(labels, Tensor) else torch.from_numpy(np.asarray(labels))
        is_several = values.ndim == 2 and (values.is_floating_point() or values.dtype == torch.bool)
        is_exact = not is_several and not values.is_floating_point()
        values = values.long() if is_exact else values.float()
        if is_several:
            _check_unit_interval(values)
        if not is_exact:
            num_labels = values.numel()
        elif values.ndim == 2:
            num_labels = len(values)
        else:
            num_labels = int((values != IGNORED_LABEL).sum())
        return cls(tokens=tokens, labels=values, num_labels=num_labels)

    @property
    def counts(self) -> dict[str, int]:
        """Over how many labels the loss of this batch sums."""
        return {"label": self.num_labels}


def _check_unit_interval(labels: Tensor) -> None:
    outside = labels[~((labels >= 0) & (labels <= 1))]  # NaN is on neither side
    if outside.numel():
        raise ValueError(
            f"labels of several classes a text must lie in [0, 1], got {outside[0].item()}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch(OfTensors):
    """Rows of a table, and the tokens of the texts that a `RowModel` reads for each.

    The texts of a row come one after the other, `texts_per_row` of them for each row.
    """

    tokens: RaggedBatch
    rows: tuple[Mapping[str, Any], ...]
    texts_per_row: tuple[int, ...]

    @property
    def num_labels(self) -> int:
        """How many rows."""
        return len(self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """Over how many rows the loss of this batch sums."""
        return {"label": self.num_labels}


Batch = PretrainingBatch | LabelledBatch | RowBatch


def next_token_labels(tokens: RaggedBatch) -> NDArray[np.int64]:
    """[T] the id right of each token; `IGNORED_LABEL` at the last token of each sequence."""
    labels = np.full(tokens.num_tokens, IGNORED_LABEL, dtype=np.int64)
    labels[:-1] = tokens.input_ids.cpu().numpy()[1:]
    labels[tokens.cu_seqlens.cpu().numpy()[1:] - 1] = IGNORED_LABEL
    return labels
