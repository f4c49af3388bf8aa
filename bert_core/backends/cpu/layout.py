"""In which order a CPU computes the sequences of a batch, and which of them attention groups.

B = sequences, T = ragged tokens, R = rows computed for them; in a group: N sequences, S = tokens
of the longest.

On a CPU a matrix product is compiled for its shape, so there should be few shapes: R is T rounded
up, and rows past T hold a token whose results are not used.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.backends.context import applied
from bert_core.batch import IGNORED_LABEL
from bert_core.ragged import RaggedBatch

# Sequences share a group while padding wastes at most this share of its attention, or so little
# that another group would cost more.
_MAX_WASTE = 0.2
_CHEAP_WASTE = 1 << 18  # of [S, S] elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Successive sequences of about one length, computed together."""

    begin: int  # of the group's tokens among the T sorted ones
    end: int
    sequences: tuple[tuple[int, int], ...]  # N places in the batch and lengths
    size: int  # S
    is_token: Tensor | None  # [N, S] bool; None if nothing is padded
    padded_index: Tensor | None  # [end - begin] int64, the index of each token among N * S

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """A batch's sequences from the longest to the shortest; made once, used by every layer."""

    order: Tensor | None  # [R] int64, which token of the batch comes where; None: as they are
    restored_order: Tensor | None  # [T] int64, its inverse
    cu_seqlens: Tensor  # [B + 1] int32, of the sorted sequences
    max_seqlen: int
    groups: tuple[Group, ...]

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.cu_seqlens.numel() - 1

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.groups[-1].end

    def sort(self, tokens: RaggedBatch) -> RaggedBatch:
        """The batch with its sequences in this layout's order, filled up to R tokens."""
        if self.order is None:
            return tokens
        return RaggedBatch(
            input_ids=tokens.input_ids[self.order],
            token_type_ids=tokens.token_type_ids[self.order],
            position_ids=tokens.position_ids[self.order],
            cu_seqlens=self.cu_seqlens,
            lengths=tuple(sorted(tokens.lengths, reverse=True)),
            max_seqlen=tokens.max_seqlen,
        )

    def restore(self, hidden: Tensor) -> Tensor:
        """[R, D] in this layout's order -> [T, D] in the batch's own."""
        return hidden if self.restored_order is None else take_rows(hidden, self.restored_order)

    def rows_at(self, positions: Tensor) -> Tensor:
        """Which rows hold the tokens at P `positions` of the batch, filled up with row 0."""
        rows = positions if self.restored_order is None else self.restored_order[positions]
        return F.pad(rows, (0, bucket_size(len(rows)) - len(rows)))


def bucket_size(num_rows: int) -> int:
    """`num_rows` rounded up to one of few sizes, at most 1/16 more above 128."""
    unit = max(8, 1 << max(0, num_rows.bit_length() - 5))
    return -(-num_rows // unit) * unit


def fill_rows(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[M, D] and [M] with rows after them that do not count, up to one of few sizes."""
    num_filled = bucket_size(len(hidden)) - len(hidden)
    return F.pad(hidden, (0, 0, 0, num_filled)), F.pad(labels, (0, num_filled), value=IGNORED_LABEL)


class _TakeRows(Function):
    """Rows of a matrix; the gradients of a row that is taken twice add up."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = values.shape
        return values.index_select(0, index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.shape).index_add_(0, index, gradient), None


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """[T, D] and M indices -> [M, D]."""
    result: Tensor = applied(_TakeRows, values, index)
    return result


def lay_out(tokens: RaggedBatch) -> AttentionLayout:
    """Sorted by length, in groups of about one length, filled up to one of few sizes."""
    sizes = np.asarray(tokens.lengths, dtype=np.int64)
    order = np.argsort(-sizes, kind="stable")
    is_sorted = bool((order == np.arange(order.size)).all())
    sorted_sizes = sizes[order]
    begins = (np.cumsum(sizes) - sizes)[order]
    sorted_ends = np.cumsum(sorted_sizes)
    token_order = np.arange(sorted_ends[-1]) + np.repeat(
        begins - (sorted_ends - sorted_sizes), sorted_sizes
    )
    back = np.empty_like(token_order)
    back[token_order] = np.arange(token_order.size)
    num_filled = bucket_size(token_order.size) - token_order.size
    is_same = is_sorted and not num_filled
    return AttentionLayout(
        order=None if is_same else torch.from_numpy(np.pad(token_order, (0, num_filled))),
        restored_order=None if is_same else torch.from_numpy(back),
        cu_seqlens=torch.from_numpy(np.concatenate(([0], sorted_ends)).astype(np.int32)),
        max_seqlen=tokens.max_seqlen,
        groups=tuple(
            _group(order[first:last], sorted_sizes[first:last], int(sorted_ends[last - 1]))
            for first, last in group_bounds(sorted_sizes)
        ),
    )


def group_bounds(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut sequences, sorted from long to short, where padding would cost more than it saves.

    Each group holds those from the first number to the one before the second.
    """
    areas = np.concatenate(([0], np.cumsum(sizes * sizes)))
    first = 0
    while first < sizes.size:
        padded = np.arange(1, sizes.size - first + 1) * sizes[first] ** 2
        needed = areas[first + 1 :] - areas[first]
        wasteful = np.flatnonzero(padded - needed > np.maximum(_CHEAP_WASTE, _MAX_WASTE * padded))
        last = first + int(wasteful[0]) if wasteful.size else sizes.size
        yield first, last
        first = last


def _group(places: NDArray[np.int64], sizes: NDArray[np.int64], end: int) -> Group:
    size = int(sizes[0])
    is_padded = bool(sizes[-1] != size)
    is_token = np.arange(size) < sizes[:, None]
    return Group(
        begin=end - int(sizes.sum()),
        end=end,
        sequences=tuple(zip(places.tolist(), sizes.tolist(), strict=True)),
        size=size,
        is_token=torch.from_numpy(is_token) if is_padded else None,
        padded_index=torch.from_numpy(np.flatnonzero(is_token)) if is_padded else None,
    )
