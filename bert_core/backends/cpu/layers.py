"""What the layers compute: linear maps, feed-forward, normalization, look-ups, the loss.

Each is one autograd function, applied without autograd where gradients are off. Its backward pass
is written out, so that it adds gradients where they belong (see `context`), computes none for
frozen parameters, and keeps for it only what cannot be had cheaply again. The loss over the
vocabulary has no other tensor of the logits' size: the logits become their own gradient in place;
dividing by a count and leaving labels out happens to the [M, D] operands of the products.

T = rows, M = predicted tokens, D = hidden size, V = vocabulary.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.backends.context import (
    ComputeWeight,
    Packed,
    add_gradient,
    add_product,
    applied,
    compute_weight,
    current_context,
    main_grad,
)
from bert_core.backends.dropout import DropoutMask

aten = torch.ops.aten

_PACKED_ROWS = 1024  # of fewer packing for one product costs more than it saves
_KEPT_ROWS = 128  # what is packed for so many was within 5% of the best for 10 to 350
_PACKED_DTYPES = (torch.bfloat16, torch.float32)
_PACKS = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def linear(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    packed = _kept_packed(weight, bias, values.dtype)
    if packed is not None:
        return _packed_product(values, packed.matrix, packed.bias)
    result: Tensor = applied(
        _Linear, values, weight, bias, compute_weight(weight), compute_weight(bias)
    )
    return result


class _Linear(Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, w: ComputeWeight, b: ComputeWeight
    ) -> Tensor:
        ctx.save_for_backward(values)
        ctx.weights = w, b
        return affine(values, w.values, b.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        w, b = ctx.weights
        needs_values, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_values = gradient @ w.values if needs_values else None
        d_weight = add_product(w, gradient.t(), values) if needs_weight else None
        d_bias = add_gradient(b, sum_rows(gradient)) if needs_bias else None
        return d_values, d_weight, d_bias, None, None


def affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """values weight^T + bias, by the fastest way there is: [T, in] -> [T, out]."""
    num_rows = values.shape[0]
    if num_rows >= _PACKED_ROWS and values.dtype in _PACKED_DTYPES and _PACKS:
        # `F.linear` fills the output with the bias first and takes the weights as they lie. These
        # kernels, which the compiler uses for frozen models, took 10 to 30% less time in bfloat16
        # (but for a vocabulary at 768 wide, where it was even) and 5 to 30% less in float32.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, num_rows)
        return _packed_product(values, packed, bias.to(values.dtype))
    return F.linear(values, weight, bias.to(values.dtype))


def _packed_product(
    values: Tensor, packed: Tensor, bias: Tensor, activation: Literal["none", "gelu"] = "none"
) -> Tensor:
    """values weight^T + bias, with the exact GELU of it where named: [T, in] -> [T, out]."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(
        values, packed, bias, activation, [], "none" if activation == "gelu" else ""
    )
    return result


def _kept_packed(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Packed | None:
    """`weight` packed in `dtype`, and `bias` in it, in a block that keeps them and can pack."""
    kept = current_context().packed
    if kept is None or dtype not in _PACKED_DTYPES or not _PACKS:
        return None
    versions = (
        0 if weight.is_inference() else weight._version,
        0 if bias.is_inference() else bias._version,
    )
    packed = kept.get((weight, bias))
    if packed is None or packed.versions != versions:
        values = weight.detach().to(dtype)
        matrix = torch.ops.mkldnn._reorder_linear_weight(values, _KEPT_ROWS)
        packed = kept[weight, bias] = Packed(matrix, bias.detach().to(dtype), versions)
    return packed


def sum_rows(values: Tensor) -> Tensor:
    """[T, N] -> [N]; a product with ones, which adds bfloat16 up in float32 and is faster."""
    return (values.new_ones(1, values.shape[0]) @ values)[0]


def feed_forward(
    hidden: Tensor, widen_weight: Tensor, widen_bias: Tensor,
    narrow_weight: Tensor, narrow_bias: Tensor,
) -> Tensor:  # fmt: skip
    widen = _kept_packed(widen_weight, widen_bias, hidden.dtype)
    narrow = _kept_packed(narrow_weight, narrow_bias, hidden.dtype)
    if widen is not None and narrow is not None:
        wide = _packed_product(hidden, widen.matrix, widen.bias, "gelu")
        return _packed_product(wide, narrow.matrix, narrow.bias)
    parameters = widen_weight, widen_bias, narrow_weight, narrow_bias
    weights = tuple(compute_weight(parameter) for parameter in parameters)
    result: Tensor = applied(_FeedForward, hidden, *parameters, weights)
    return result


class _FeedForward(Function):
    """Keeps the widened tokens before GELU, which the backward pass computes again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        ctx.weights = w1, b1, w2, b2 = rest[-1]
        wide = affine(hidden, w1.values, b1.values)
        ctx.save_for_backward(hidden, wide)
        return affine(F.gelu(wide), w2.values, b2.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, wide = ctx.saved_tensors
        w1, b1, w2, b2 = ctx.weights
        needs_hidden, needs_w1, needs_b1, needs_w2, needs_b2 = ctx.needs_input_grad[:5]
        d_w2 = add_product(w2, gradient.t(), F.gelu(wide)) if needs_w2 else None
        d_b2 = add_gradient(b2, sum_rows(gradient)) if needs_b2 else None
        if not (needs_hidden or needs_w1 or needs_b1):
            return None, None, None, d_w2, d_b2, None
        d_wide = gradient @ w2.values
        d_wide = aten.gelu_backward.grad_input(d_wide, wide, grad_input=d_wide)
        d_w1 = add_product(w1, d_wide.t(), hidden) if needs_w1 else None
        d_b1 = add_gradient(b1, sum_rows(d_wide)) if needs_b1 else None
        d_hidden = d_wide @ w1.values if needs_hidden else None
        return d_hidden, d_w1, d_b1, d_w2, d_b2, None


def add_norm(
    values: Tensor, update: Tensor | None, mask: DropoutMask | None,
    weight: Tensor, bias: Tensor, eps: float,
) -> Tensor:  # fmt: skip
    weights = compute_weight(weight), compute_weight(bias)
    result: Tensor = applied(_AddNorm, values, update, mask, weight, bias, *weights, eps)
    return result


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, update: Tensor | None, mask: DropoutMask | None,
        weight: Tensor, bias: Tensor, w: ComputeWeight, b: ComputeWeight, eps: float,
    ) -> Tensor:  # fmt: skip
        total = values
        if update is not None:
            total = values + update if mask is None else _add_kept(values, update, mask)
        ctx.weights, ctx.mask = (w, b), mask
        shape = [total.shape[-1]]
        normalized, mean, rstd = torch.native_layer_norm(total, shape, w.values, b.values, eps)
        ctx.save_for_backward(total, mean, rstd)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, rstd = ctx.saved_tensors
        w, b = ctx.weights
        needs_values, needs_update, _, needs_weight, needs_bias = ctx.needs_input_grad[:5]
        d_total, d_weight, d_bias = aten.native_layer_norm_backward(
            gradient, total, [total.shape[-1]], mean, rstd, w.values, b.values,
            [needs_values or needs_update, needs_weight, needs_bias],
        )  # fmt: skip
        d_update = None
        if needs_update:
            mask = ctx.mask
            d_update = d_total if mask is None else _add_kept(d_total.new_zeros(()), d_total, mask)
        d_weight = add_gradient(w, d_weight) if needs_weight else None
        d_bias = add_gradient(b, d_bias) if needs_bias else None
        return d_total, d_update, None, d_weight, d_bias, None, None, None


def _add_kept(values: Tensor, update: Tensor, mask: DropoutMask) -> Tensor:
    """`values` + what `mask` leaves of `update`."""
    kept = mask.kept(update.dtype)
    if update.dtype == torch.bfloat16:  # the factor stays float32 and the sum is rounded once
        return torch.addcmul(values, update, kept, value=mask.factor)
    return torch.addcmul(values, update, kept.mul_(mask.factor))


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    result: Tensor = applied(_LookUp, table, ids, main_grad(table))
    return result


class _LookUp(Function):
    """Adds gradients to the rows that were looked up and touches no other row of a table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, added_to: Tensor | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.main_grad = table.shape, added_to
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.main_grad is None:
            return gradient.new_zeros(ctx.shape).index_add_(0, ids, gradient), None, None
        ctx.main_grad.index_add_(0, ids, gradient)
        return None, None, None


# Up to this many rows the forward pass saves the gradient; of more, chunks are computed again.
_ROWS = 4096
_PRECISE_ELEMENTS = 1 << 20  # in float32 at a time; they stay in the cache


def vocabulary_loss_sum(hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
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
