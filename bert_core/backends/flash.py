"""Attention over ragged tokens in one kernel of a GPU, with dropout of its probabilities.

torch's `varlen_attn` knows no dropout; the operator beneath it does. It draws from torch's own
Philox generator, which is put at a place that depends on the dropout's key alone, and back again:
the same key drops the same, forwards, backwards and when a layer is computed a second time.

Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023).
T = ragged tokens, B = sequences, H = heads, K = head width.
"""

from typing import Any

import torch
from torch import Tensor

from bert_core.backends.attention_dropout import AttentionDropout
from bert_core.backends.dropout import Site, word_of
from bert_core.ragged import RaggedBatch
from bert_core.randomness import fold_in_word

_HALF = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256
_OLDEST = (8, 0)  # Ampere


def flash_takes(qkv: Tensor) -> bool:
    """Whether the kernel computes these [T, 3, H, K]."""
    width = qkv.shape[-1]
    if not (qkv.is_cuda and qkv.dtype in _HALF and width <= _WIDEST_HEAD and width % 8 == 0):
        return False
    return torch.cuda.get_device_capability(qkv.device) >= _OLDEST


def attend_flash(
    qkv: Tensor, tokens: RaggedBatch, causal: bool, dropped: AttentionDropout | None
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V in each sequence: [T, 3, H, K] -> [T, D]."""
    query, key, value = qkv.unbind(1)
    if dropped is None:
        bits, layer, rate = None, 0, 0.0
    else:
        bits, layer, rate = dropped.key.bits, dropped.key.layer, kernel_rate(dropped.rate)
    mixed, *_ = _flash(
        query, key, value, tokens.cu_seqlens, tokens.max_seqlen, causal, rate, bits, layer
    )
    return mixed.flatten(1)


def kernel_rate(rate: float) -> float:
    """The multiple of 1/256 nearest to `rate`, which the kernel applies exactly.

    It keeps a probability if a random byte is at most floor(255 * (1 - rate)), but multiplies by
    1 / (1 - rate). The two match if 1 - rate is k / 256; otherwise outputs would be too small, by
    0.17% at a rate of 0.1.
    """
    kept = min(255, max(1, round(256 * (1 - rate))))
    return 1 - kept / 256


@torch.library.custom_op("bertsmith::flash_attention", mutates_args=())
def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    causal: bool,
    rate: float,
    bits: Tensor | None,  # [] int64 on the host: it is read here, outside of any traced code
    layer: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device(query.device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.get_state()
        if bits is not None:
            word = fold_in_word(word_of(bits), layer)
            generator.manual_seed(fold_in_word(word, Site.ATTENTION_PROBABILITIES) >> 1)
        try:
            mixed, logsumexp, philox_state, unused, _ = torch.ops.aten._flash_attention_forward(
                query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                rate, causal, False,
            )  # fmt: skip
        finally:
            generator.set_state(before)
    return mixed, logsumexp, philox_state, unused


@_flash.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(query, memory_format=torch.contiguous_format),
        query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32),
        query.new_empty((2,), dtype=torch.uint64),
        query.new_empty((), dtype=torch.uint64),
    )


@torch.library.custom_op("bertsmith::flash_attention_backward", mutates_args=())
def _flash_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mixed: Tensor,
    logsumexp: Tensor,
    philox_state: Tensor,
    unused: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    causal: bool,
    rate: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._flash_attention_backward(
        gradient.contiguous(), query, key, value, mixed, logsumexp, cu_seqlens, cu_seqlens,
        max_seqlen, max_seqlen, rate, causal, philox_state, unused,
    )  # fmt: skip


@_flash_backward.register_fake
def _(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.contiguous_format
    return (
        torch.empty_like(query, memory_format=like),
        torch.empty_like(key, memory_format=like),
        torch.empty_like(value, memory_format=like),
    )


def _keep_for_backward(ctx, inputs, output) -> None:
    query, key, value, cu_seqlens, max_seqlen, causal, rate, _, _ = inputs
    ctx.save_for_backward(query, key, value, cu_seqlens, *output)
    ctx.settings = max_seqlen, causal, rate
    ctx.mark_non_differentiable(*output[1:])


def _backward(ctx, gradient: Tensor, *_) -> tuple[Tensor | None, ...]:
    query, key, value, cu_seqlens, mixed, logsumexp, philox_state, unused = ctx.saved_tensors
    d_qkv = _flash_backward(
        gradient, query, key, value, mixed, logsumexp, philox_state, unused, cu_seqlens,
        *ctx.settings,
    )  # fmt: skip
    return (*d_qkv, *(None,) * 6)


_flash.register_autograd(_backward, setup_context=_keep_for_backward)
