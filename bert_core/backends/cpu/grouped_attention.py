"""Attention computed group by group, with dropout of its probabilities.

The probabilities are made in chunks that stay in a CPU's cache. A dropped probability keeps its
value and gets a minus sign, so that one tensor serves both directions: `relu` drops, `abs` gives
back the softmax. In float32 without gradients torch's fused kernel takes its place.

R = rows, the T tokens filled up; in a chunk: N sequences, S tokens of the longest, H heads, K =
head width.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from bert_core.backends.context import applied
from bert_core.backends.cpu.layout import AttentionLayout, Group
from bert_core.backends.dropout import AttentionDropout

aten = torch.ops.aten

_CHUNK_ELEMENTS = 1 << 20  # probabilities computed at a time
# Longer sequences do not save their probabilities and compute them again.
_LONGEST_SAVED = 256


def attend(
    qkv: Tensor, layout: AttentionLayout, causal: bool, dropped: AttentionDropout | None
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V in each sequence: [T, 3, H, K] -> [T, D]."""
    if dropped is None and qkv.dtype == torch.float32 and not torch.is_grad_enabled():
        return _attend_fused(qkv, layout, causal)
    mixed: Tensor = applied(_Attend, qkv, layout, causal, dropped)
    return mixed


def _attend_fused(qkv: Tensor, layout: AttentionLayout, causal: bool) -> Tensor:
    """The same by torch's kernel, which keeps no probabilities.

    In float32 it mostly took 0.6 to 0.95 times as long as `_Attend` (1.2 for many sequences of 16
    tokens), in bfloat16 up to 1.8 times.
    """
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
        ctx: Any,
        qkv: Tensor,
        layout: AttentionLayout,
        causal: bool,
        dropped: AttentionDropout | None,
    ) -> Tensor:
        offsets = None
        if dropped is not None:
            offsets = dropped.offsets(layout.num_sequences, qkv.shape[2], layout.max_seqlen)
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
    probabilities: Tensor,
    dropped: AttentionDropout,
    offsets: NDArray[np.int64] | None,
    group: Group,
    chunk: slice,
) -> None:
    """Give the probabilities [N * H, S, S] that are dropped a minus sign."""
    sequences = group.sequences[chunk]
    assert offsets is not None
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
