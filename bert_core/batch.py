"""Sequences of any lengths in one row, without padding, and what is to be predicted of them.

B = sequences, T = tokens of all of them, S = tokens of the longest, M = predicted tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfTensors:
    """Tensors, batches of tensors, and plain values."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with all its tensors as `move` gives them back."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, OfTensors):
                changes[field.name] = value.moved(move)
            elif isinstance(value, Tensor):
                changes[field.name] = move(value)
        return replace(self, **changes)

    def to(self, device: torch.device | str) -> Self:
        """The same batch on `device`; to a GPU through pinned memory, so that no host waits."""

        def move(values: Tensor) -> Tensor:
            if torch.device(device).type == "cuda" and not (values.is_cuda or values.is_pinned()):
                values = values.pin_memory()
            return values.to(device, non_blocking=True)

        return self.moved(move)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RaggedBatch(OfTensors):
    """The tokens of B sequences, one sequence after the other."""

    input_ids: Tensor  # [T] int64
    token_type_ids: Tensor  # [T] int64
    position_ids: Tensor  # [T] int64, starts at 0 in every sequence
    cu_seqlens: Tensor  # [B + 1] int32, where each sequence begins, and T
    lengths: tuple[int, ...]  # B entries on the host, so that no kernel has to be asked
    max_seqlen: int

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.cu_seqlens.numel() - 1

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.input_ids.numel()

    @property
    def first_positions(self) -> Tensor:
        """[B] int64, where each sequence's first token is, [CLS]."""
        return self.cu_seqlens[:-1].long()

    @property
    def padded_positions(self) -> Tensor:
        """[T] int64, where each token is among B * S, were the sequences padded to S."""
        rows = torch.arange(
            self.num_tokens, device=self.cu_seqlens.device, dtype=self.cu_seqlens.dtype
        )
        sequence = torch.searchsorted(self.cu_seqlens[1:], rows, right=True)
        return sequence * self.max_seqlen + self.position_ids

    def padded(self, values: Tensor, padding: float) -> Tensor:
        """[T, ...] -> [B, S, ...] with `padding` after the end of each sequence; asks no device."""
        padded = values.new_full((self.num_sequences * self.max_seqlen, *values.shape[1:]), padding)
        padded = padded.index_copy(0, self.padded_positions, values)
        return padded.unflatten(0, (-1, self.max_seqlen))

    def in_rows(self, compute: Callable[[Tensor, Tensor], Tensor], values: Tensor) -> Tensor:
        """What `compute` makes of [B, S, ...] values and of where tokens are, [B, S]: [T, ...]."""
        index, size = self.padded_positions, self.max_seqlen
        rows = values.new_zeros(self.num_sequences * size, *values.shape[1:])
        rows = rows.index_copy(0, index, values).unflatten(0, (-1, size))
        place = torch.arange(size, device=values.device)
        computed = compute(rows, place < self.cu_seqlens.diff()[:, None])
        return computed.flatten(0, 1).index_select(0, index)

    def mean(self, values: Tensor) -> Tensor:
        """[T, D] float32 -> [B, D] the mean of each sequence's tokens."""
        lengths = self.cu_seqlens.diff().long()
        return torch.segment_reduce(values, "mean", lengths=lengths, axis=0, unsafe=True)

    @classmethod
    def from_arrays(
        cls, input_ids: ArrayLike, segment_b_start: ArrayLike | None, lengths: ArrayLike
    ) -> Self:
        """Build the batch from T ids and the B lengths that cut them into sequences.

        `segment_b_start` holds for each sequence the index of its second segment's first token;
        its length where there is one segment. None means one segment everywhere. Raises ValueError
        for an empty batch or sequence, and if the arrays do not fit together.
        """
        ids = np.asarray(input_ids)
        sizes = np.asarray(lengths, dtype=np.int64)
        if not sizes.size or sizes.min() < 1:
            raise ValueError(
                f"a batch must hold sequences of at least one token, got lengths {sizes.tolist()}"
            )
        if ids.ndim != 1 or ids.size != sizes.sum():
            raise ValueError(
                f"lengths must add up to the number of input ids, got {int(sizes.sum())} "
                f"and input ids of shape {ids.shape}"
            )
        ends = np.cumsum(sizes)
        positions = np.arange(ids.size) - np.repeat(ends - sizes, sizes)
        if segment_b_start is None:
            token_types = np.zeros(ids.size, dtype=np.int64)
        else:
            starts = np.asarray(segment_b_start, dtype=np.int64)
            token_types = (positions >= np.repeat(starts, sizes)).astype(np.int64)
        return cls(
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            token_type_ids=torch.from_numpy(token_types),
            position_ids=torch.from_numpy(positions),
            cu_seqlens=torch.from_numpy(np.concatenate(([0], ends)).astype(np.int32)),
            lengths=tuple(sizes.tolist()),
            max_seqlen=int(sizes.max()),
        )

    @classmethod
    def from_sequences(
        cls, sequences: Sequence[Sequence[int]], segment_b_start: Sequence[int] | None = None
    ) -> Self:
        """Build the batch from B lists of ids; raises ValueError for none or an empty one."""
        ids = [index for sequence in sequences for index in sequence]
        return cls.from_arrays(ids, segment_b_start, [len(sequence) for sequence in sequences])


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
    float for cosines, [N] int64 topics or [N, 2] int64 numbers of first and second texts; language
    models [T] targets from `next_token_labels`.
    """

    tokens: RaggedBatch
    labels: Tensor
    num_labels: int  # labels that count

    @classmethod
    def from_arrays(cls, tokens: RaggedBatch, labels: ArrayLike | Tensor) -> Self:
        """Build the batch and count, on the host, the labels that are not `IGNORED_LABEL`.

        [B, C] booleans count one label each; they and floats become float32, integers and [B]
        booleans int64. Of [B, 2] spans every row is one label. Raises ValueError for [B, C] floats
        outside of 0 to 1.
        """
        values = labels if isinstance(labels, Tensor) else torch.from_numpy(np.asarray(labels))
        is_several = values.ndim == 2 and (values.is_floating_point() or values.dtype == torch.bool)
        is_exact = not is_several and not values.is_floating_point()
        values = values.long() if is_exact else values.float()
        if is_several and not ((values >= 0) & (values <= 1)).all():
            raise ValueError("labels of several classes must lie between 0 and 1")
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch(OfTensors):
    """Rows of a table, and the tokens of the texts that a `RowModel` reads for each.

    The texts of a row come one after the other, `texts_per_row` of them for each row.
    """

    tokens: RaggedBatch
    rows: tuple[Mapping[str, Any], ...]
    texts_per_row: tuple[int, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Over how many rows the loss of this batch sums."""
        return {"label": len(self.rows)}


Batch = PretrainingBatch | LabelledBatch | RowBatch


def next_token_labels(tokens: RaggedBatch) -> NDArray[np.int64]:
    """[T] the id right of each token; `IGNORED_LABEL` at the last token of each sequence."""
    labels = np.full(tokens.num_tokens, IGNORED_LABEL, dtype=np.int64)
    labels[:-1] = tokens.input_ids.cpu().numpy()[1:]
    labels[tokens.cu_seqlens.cpu().numpy()[1:] - 1] = IGNORED_LABEL
    return labels
