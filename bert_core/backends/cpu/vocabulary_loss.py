"""Cross-entropy over the vocabulary with no other tensor of the logits' size.

M = predicted tokens, D = hidden size, V = vocabulary. The logits become their own gradient in
place; dividing by a count and leaving labels out happens to the [M, D] operands of the products
that follow, not to the [M, V] gradient.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.backends.context import (
    ComputeWeight,
    add_gradient,
    add_product,
    applied,
    compute_weight,
)
from bert_core.backends.cpu.layer_kernels import affine

# Up to this many rows the forward pass saves the gradient; of more, chunks are computed again.
_ROWS = 4096
_PRECISE_ELEMENTS = 1 << 20  # in float32 at a time; they stay in the cache


def vocabulary_loss_sum(hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(hidden embeddings^T + bias)[label], summed over the labels that are not < 0.

    The softmax is float32 whatever the logits' format; a single loss is at most 87.
    """
    weights = compute_weight(embeddings), compute_weight(bias)
    loss: Tensor = applied(_VocabularyLoss, hidden, embeddings, bias, weights, labels)
    return loss


class _VocabularyLoss(Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, embeddings: Tensor, bias: Tensor,
        weights: tuple[ComputeWeight, ComputeWeight], labels: Tensor,
    ) -> Tensor:  # fmt: skip
        counted = labels >= 0
        targets = labels.clamp(min=0)
        total = torch.zeros((), device=hidden.device)
        saved = None
        for rows in _chunks(hidden.shape[0]):
            losses, saved = _losses_and_gradient(hidden[rows], weights, targets[rows])
            total += (losses * counted[rows]).sum()
        if hidden.shape[0] > _ROWS:
            saved = None
        ctx.save_for_backward(hidden, targets, counted, saved)
        ctx.weights = weights
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, targets, counted, saved = ctx.saved_tensors
        weight, bias = ctx.weights
        needs_hidden, needs_embeddings, needs_bias = ctx.needs_input_grad[:3]
        label_weights = (gradient * counted).to(hidden.dtype)[:, None]  # [M, 1]
        d_hidden = torch.empty_like(hidden) if needs_hidden else None
        d_embeddings: Tensor | None = None
        d_bias: Tensor | None = None
        for rows in _chunks(hidden.shape[0]):
            d_logits = saved
            if d_logits is None:
                _, d_logits = _losses_and_gradient(hidden[rows], ctx.weights, targets[rows])
            if d_hidden is not None:
                torch.mm(d_logits, weight.values, out=d_hidden[rows])
            if needs_embeddings:
                weighted = hidden[rows] * label_weights[rows]
                d_embeddings = _plus(d_embeddings, add_product(weight, d_logits.t(), weighted))
            if needs_bias:
                part = (label_weights[rows].t() @ d_logits)[0]
                d_bias = _plus(d_bias, add_gradient(bias, part))
        if d_hidden is not None:
            d_hidden.mul_(label_weights)
        return d_hidden, d_embeddings, d_bias, None, None


def _losses_and_gradient(
    hidden: Tensor, weights: tuple[ComputeWeight, ComputeWeight], targets: Tensor
) -> tuple[Tensor, Tensor]:
    """[M] losses in float32 and [M, V] the gradient of their sum by the logits."""
    weight, bias = weights
    logits = affine(hidden, weight.values, bias.values)
    likelihood = _softmax_in_float32(logits, targets)
    # A target's gradient is its probability minus one: the difference is taken before it is rounded
    # to the logits' format, in which 0.999 is 1. (`scatter_` along the vocabulary is a hundred
    # times slower here.)
    first = torch.arange(len(targets)) * logits.shape[1]
    logits.view(-1).index_copy_(0, first + targets, (likelihood - 1).to(logits.dtype))
    tiniest = torch.finfo(likelihood.dtype).tiny
    return -likelihood.clamp(min=tiniest).log().float(), logits


def _softmax_in_float32(logits: Tensor, targets: Tensor) -> Tensor:
    """Make [M, V] logits probabilities, in place; returns those of the targets, [M], unrounded."""
    if logits.dtype != torch.bfloat16:
        torch.softmax(logits, dim=-1, out=logits)
        return logits.gather(1, targets[:, None])[:, 0]
    likelihood = torch.empty(len(targets))
    rows = max(1, _PRECISE_ELEMENTS // logits.shape[1])
    precise = torch.empty(min(rows, len(targets)), logits.shape[1])
    for part, labels, found in zip(
        logits.split(rows), targets.split(rows), likelihood.split(rows), strict=True
    ):
        probabilities = precise[: len(part)].copy_(part)
        torch.softmax(probabilities, dim=-1, out=probabilities)
        part.copy_(probabilities)
        found.copy_(probabilities.gather(1, labels[:, None])[:, 0])
    return likelihood


def _chunks(num_rows: int) -> list[slice]:
    starts = range(0, max(1, num_rows), _ROWS)  # one empty chunk where there are no rows
    return [slice(first, min(first + _ROWS, num_rows)) for first in starts]


def _plus(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    return part if total is None or part is None else total + part
