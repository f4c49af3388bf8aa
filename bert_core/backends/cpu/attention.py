"""Attention computed group by group, with dropout of its probabilities.

On a CPU a matrix product is compiled for its shape, so there should be few shapes: the T tokens of
a batch are sorted by the length of their sequences and filled up to R rows, whose results past T
are not used. Sequences of about one length form a group, and its probabilities are made in chunks
that stay in a CPU's cache. A dropped probability keeps its value and gets a minus sign, so that one
tensor serves both directions: `relu` drops, `abs` gives back the softmax.

B = sequences, in a group or chunk: N sequences, S tokens of the longest, H heads, K = head width.
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
from torch.nn.functional import scaled_dot_product_attention

from bert_core.backends.context import applied
from bert_core.backends.dropout import AttentionDropout
from bert_core.batch import IGNORED_LABEL, RaggedBatch

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
        return hidden if self.restored_order is None else take_rows(hidden, self.restored_order)

    def rows_at(self, positions: Tensor) -> Tensor:
        rows = positions if self.restored_order is None else self.restored_order[positions]
        return F.pad(rows, (0, bucket_size(len(rows)) - len(rows)))


def bucket_size(num_rows: int) -> int:
    """`num_rows` rounded up to one of few sizes, at most 1/16 more above 128."""
    unit = max(8, 1 << max(0, num_rows.bit_length() - 5))
    return -(-num_rows // unit) * unit


def fill_rows(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
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
        groups=tuple(
            _group(order[first:last], sorted_sizes[first:last], int(sorted_ends[last - 1]))
            for first, last in group_bounds(sorted_sizes)
        ),
    )


def group_bounds(sizes: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """First and last + 1 of each group of sequences, which are sorted from long to short."""
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


aten = torch.ops.aten

_CHUNK_ELEMENTS = 1 << 20  # probabilities computed at a time
# Longer sequences do not save their probabilities and compute them again.
_LONGEST_SAVED = 256


def attend(
    qkv: Tensor, layout: AttentionLayout, causal: bool, dropped: AttentionDropout | None
) -> Tensor:
    if dropped is None and qkv.dtype == torch.float32 and not torch.is_grad_enabled():
        return _attend_fused(qkv, layout, causal)
    mixed: Tensor = applied(_Attend, qkv, layout, causal, dropped)
    return mixed


def _attend_fused(qkv: Tensor, layout: AttentionLayout, causal: bool) -> Tensor:
    """The same by torch's kernel: in float32 0.6 to 0.95 times as long, in bfloat16 up to 1.8."""
    mixed = torch.empty_like(qkv[:, 0])  # [R, H, K]
    mixed[layout.num_tokens :].zero_()
    for group in layout.groups:
        query, key, value = _pad(qkv, group).permute(2, 0, 3, 1, 4).unbind(0)  # [N, H, S, K]
        # What fills a sequence up comes after its tokens, which see nothing of it where causal.
        mask = None if causal or group.is_token is None else group.is_token[:, None, None]
        heads = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
        _unpad(heads.transpose(1, 2), mixed, group)
    return mixed.flatten(1)


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, layout: AttentionLayout, causal: bool,
        dropped: AttentionDropout | None,
    ) -> Tensor:  # fmt: skip
        offsets = None
        if dropped is not None:
            offsets = dropped.offsets(layout.num_sequences, qkv.shape[2], layout.groups[0].size)
        saved: list[Tensor | None] = []
        mixed = torch.empty_like(qkv[:, 0])  # [R, H, K]
        mixed[layout.num_tokens :].zero_()
        for group in layout.groups:
            rows = _pad(qkv, group)  # [N, S, 3, H, K]
            padded = _padded_buffer(mixed, group)  # [N, S, H, K]
            saved.append(_probabilities_buffer(group, qkv) if ctx.needs_input_grad[0] else None)
            for chunk in _chunks(group, qkv):
                query, key, value = _heads(rows[chunk])
                probabilities = _chunk_of(saved[-1], chunk, query)
                _probabilities(query, key, group, chunk, causal, out=probabilities)
                if dropped is None:
                    mixed_heads = torch.bmm(probabilities, value)
                else:
                    _negate_dropped(probabilities, dropped, offsets, group, chunk)
                    mixed_heads = _product(probabilities.relu(), value, dropped.factor)
                padded[chunk] = _sequences(mixed_heads, padded[chunk])
            _unpad(padded, mixed, group)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(qkv, *saved)
            ctx.settings = layout, causal, dropped, offsets
        return mixed.flatten(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, *saved = ctx.saved_tensors
        layout, causal, dropped, offsets = ctx.settings
        gradient = gradient.view_as(qkv[:, 0])  # [T, H, K]
        d_qkv = torch.empty_like(qkv)
        d_qkv[layout.num_tokens :].zero_()
        scale = qkv.shape[-1] ** -0.5
        factor = 1.0 if dropped is None else dropped.factor
        for group, saved_of_group in zip(layout.groups, saved, strict=True):
            rows, d_mixed = _pad(qkv, group), _pad(gradient, group)
            d_rows = _padded_buffer(d_qkv, group)
            for chunk in _chunks(group, qkv):
                query, key, value = _heads(rows[chunk])
                d_heads = d_mixed[chunk].transpose(1, 2).flatten(0, 1)  # [N * H, S, K]
                probabilities = _chunk_of(saved_of_group, chunk, query)
                if saved_of_group is None:
                    _probabilities(query, key, group, chunk, causal, out=probabilities)
                    if dropped is not None:
                        _negate_dropped(probabilities, dropped, offsets, group, chunk)
                kept = probabilities if dropped is None else probabilities.relu()
                d_value = _product(kept.transpose(1, 2), d_heads, factor)
                d_probabilities = _product(d_heads, value.transpose(1, 2), factor)
                if dropped is not None:
                    aten.threshold_backward.grad_input(
                        d_probabilities, probabilities, 0, grad_input=d_probabilities
                    )
                    probabilities = probabilities.abs()
                d_scores = aten._softmax_backward_data(
                    d_probabilities, probabilities, -1, qkv.dtype
                )
                d_query = _product(d_scores, key, scale)
                d_key = _product(d_scores.transpose(1, 2), query, scale)
                for part, d_part in enumerate((d_query, d_key, d_value)):
                    target = d_rows[chunk][:, :, part]
                    target.copy_(_sequences(d_part, target))
            _unpad(d_rows, d_qkv, group)
        return d_qkv, None, None, None


def _probabilities_buffer(group: Group, qkv: Tensor) -> Tensor | None:
    """Where the group's probabilities are saved [N * H, S, S]; None: they are computed again."""
    if group.size > _LONGEST_SAVED:
        return None
    return qkv.new_empty(group.num_sequences * qkv.shape[-2], group.size, group.size)


def _chunk_of(saved: Tensor | None, chunk: slice, query: Tensor) -> Tensor:
    """Where a chunk's probabilities [N * H, S, S] are written: among the saved or apart."""
    if saved is None:
        return query.new_empty(query.shape[0], query.shape[1], query.shape[1])
    num_heads = query.shape[0] // (chunk.stop - chunk.start)
    return saved[chunk.start * num_heads : chunk.stop * num_heads]


def _probabilities(
    query: Tensor, key: Tensor, group: Group, chunk: slice, causal: bool, *, out: Tensor
) -> None:
    """Write [N * H, S, S] what each token reads of each."""
    torch.baddbmm(out, query, key.transpose(1, 2), beta=0, alpha=query.shape[-1] ** -0.5, out=out)
    if group.is_token is not None:
        by_sequence = out.unflatten(0, (chunk.stop - chunk.start, -1))
        by_sequence.masked_fill_(~group.is_token[chunk, None, None], -torch.inf)
    if causal:
        future = torch.ones(group.size, group.size, dtype=torch.bool, device=out.device)
        out.masked_fill_(future.triu(1), -torch.inf)
    torch.softmax(out, dim=-1, out=out)


def _negate_dropped(
    probabilities: Tensor, dropped: AttentionDropout, offsets: Any, group: Group, chunk: slice
) -> None:
    """Give the probabilities [N * H, S, S] that are dropped a minus sign."""
    sequences = group.sequences[chunk]
    num_heads = probabilities.shape[0] // len(sequences)
    signed = dropped.signs(offsets, sequences, num_heads, group.size)
    same = probabilities.dtype == torch.bfloat16  # then only bits are looked at
    signs = signed.view(torch.bfloat16) if same else signed.to(probabilities.dtype)
    probabilities.copysign_(signs)


def _product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Batched matrix product times `factor`, rounded once."""
    shape = left.shape[0], left.shape[1], right.shape[2]
    return torch.baddbmm(left.new_empty(shape), left, right, beta=0, alpha=factor)


def _chunks(group: Group, qkv: Tensor) -> Iterator[slice]:
    """Slices of a group's sequences whose probabilities are computed at a time."""
    step = max(1, _CHUNK_ELEMENTS // (qkv.shape[-2] * group.size**2))
    for first in range(0, group.num_sequences, step):
        yield slice(first, min(first + step, group.num_sequences))


def _heads(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N, S, 3, H, K] -> query, key and value [N * H, S, K] each."""
    query, key, value = rows.permute(2, 0, 3, 1, 4).flatten(1, 2).unbind(0)
    return query, key, value


def _sequences(heads: Tensor, like: Tensor) -> Tensor:
    """[N * H, S, K] -> [N, S, H, K]."""
    return heads.unflatten(0, (like.shape[0], -1)).transpose(1, 2)


def _pad(ragged: Tensor, group: Group) -> Tensor:
    """The group's tokens [T, ...] -> [N, S, ...], zeros where there is no token."""
    tokens = ragged[group.begin : group.end]
    if group.padded_index is None:
        return tokens.unflatten(0, (group.num_sequences, group.size))
    padded = ragged.new_zeros(group.num_sequences * group.size, *ragged.shape[1:])
    padded.index_copy_(0, group.padded_index, tokens)
    return padded.unflatten(0, (group.num_sequences, group.size))


def _padded_buffer(ragged: Tensor, group: Group) -> Tensor:
    """Where to write [N, S, ...]: the ragged tokens themselves where nothing is padded."""
    if group.padded_index is None:
        return _pad(ragged, group)
    return ragged.new_empty(group.num_sequences, group.size, *ragged.shape[1:])


def _unpad(padded: Tensor, ragged: Tensor, group: Group) -> None:
    """Copy the tokens of a padded tensor [N, S, ...] to their places among the ragged ones."""
    rows, tokens = padded.flatten(0, 1), ragged[group.begin : group.end]
    if group.padded_index is not None:
        torch.index_select(rows, 0, group.padded_index, out=tokens)
    elif rows.data_ptr() != tokens.data_ptr():
        tokens.copy_(rows)
