"""The layers everything is made of: a linear map, a normalization, and what joins them.

Each is one autograd function whose backward pass is written out, so that it adds gradients where
they belong (see `precision`) and keeps for it only what cannot be had cheaply again. T = rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.backends.cpu.dropout import DropoutMask
from bert_core.backends.precision import Computing, Lent, add_gradient, add_product

aten = torch.ops.aten

_PACKED_ROWS = 1024  # of fewer the packing costs more than it saves
_PACKED_DTYPES = (torch.bfloat16, torch.float32)
_PACKS = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear(Computing):
    """Map the last dimension by `weight` [out, in] and add `bias` [out]."""

    def __init__(self, in_features: int, out_features: int, initializer_range: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, initializer_range)

    def forward(self, values: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        result: Tensor = _Linear.apply(
            values, self.weight, self.bias, self.lent("weight"), self.lent("bias")
        )
        return result


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor, w: Lent, b: Lent) -> Tensor:
        ctx.save_for_backward(values)
        ctx.lent = w, b
        return affine(values, w.values, b.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (values,) = ctx.saved_tensors
        w, b = ctx.lent
        d_values = gradient @ w.values if ctx.needs_input_grad[0] else None
        return d_values, *linear_gradients(w, b, values, gradient), None, None


def affine(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """values weight^T + bias, by the fastest way there is: [T, in] -> [T, out]."""
    bias = bias.to(values.dtype)
    is_large = values.shape[0] >= _PACKED_ROWS
    if is_large and values.dtype in _PACKED_DTYPES and values.device.type == "cpu" and _PACKS:
        # `F.linear` fills the output with the bias first and takes the weights as they lie. These
        # kernels, which the compiler uses for frozen models, took 10 to 30% less time in bfloat16
        # (but for a vocabulary at 768 wide, where it was even) and 5 to 30% less in float32.
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, values.shape[0])
        return torch.ops.mkldnn._linear_pointwise(values, packed, bias, "none", [], "")
    return F.linear(values, weight, bias)


def linear_gradients(
    weight: Lent, bias: Lent, values: Tensor, gradient: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of a linear map's weight and bias, or None where they found their place."""
    d_weight = add_product(weight, gradient.t(), values)
    return d_weight, add_gradient(bias, sum_rows(gradient))


def sum_rows(values: Tensor) -> Tensor:
    """[T, N] -> [N]; a product with ones, which adds bfloat16 up in float32 and is faster."""
    return (values.new_ones(1, values.shape[0]) @ values)[0]


class FeedForward(torch.nn.Module):
    """Widen each token, bend it with the exact GELU, and narrow it again."""

    def __init__(self, hidden_size: int, intermediate_size: int, initializer_range: float) -> None:
        super().__init__()
        self.widen = Linear(hidden_size, intermediate_size, initializer_range)
        self.narrow = Linear(intermediate_size, hidden_size, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        widen, narrow = self.widen, self.narrow
        result: Tensor = _FeedForward.apply(
            hidden, widen.weight, widen.bias, narrow.weight, narrow.bias,
            (widen.lent("weight"), widen.lent("bias"), narrow.lent("weight"), narrow.lent("bias")),
        )  # fmt: skip
        return result


class _FeedForward(Function):
    """Keeps the widened tokens before GELU and computes it again on the way back."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *rest: Any) -> Tensor:
        ctx.lent = w1, b1, w2, b2 = rest[-1]
        wide = affine(hidden, w1.values, b1.values)
        ctx.save_for_backward(hidden, wide)
        return affine(F.gelu(wide), w2.values, b2.values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, wide = ctx.saved_tensors
        w1, b1, w2, b2 = ctx.lent
        narrow_gradients = linear_gradients(w2, b2, F.gelu(wide), gradient)
        d_wide = gradient @ w2.values
        d_wide = aten.gelu_backward.grad_input(d_wide, wide, grad_input=d_wide)
        widen_gradients = linear_gradients(w1, b1, hidden, d_wide)
        return d_wide @ w1.values, *widen_gradients, *narrow_gradients, None


class LayerNorm(Computing):
    """Give the last dimension mean 0 and variance 1, then scale and shift it."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self, values: Tensor, update: Tensor | None = None, mask: DropoutMask | None = None
    ) -> Tensor:
        """Normalize `values` + what `mask` leaves of `update`, all [T, D]; float32 statistics."""
        result: Tensor = _AddNorm.apply(
            values, update, mask, self.weight, self.bias,
            self.lent("weight"), self.lent("bias"), self.eps,
        )  # fmt: skip
        return result


class _AddNorm(Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, update: Tensor | None, mask: DropoutMask | None,
        weight: Tensor, bias: Tensor, w: Lent, b: Lent, eps: float,
    ) -> Tensor:  # fmt: skip
        total = values
        if update is not None:
            scale = None if mask is None else mask.scale(values.dtype)
            total = values + update if scale is None else torch.addcmul(values, update, scale)
        ctx.lent, ctx.mask = (w, b), mask
        weights = _for(total, w), _for(total, b)
        shape = [total.shape[-1]]
        normalized, mean, deviation = aten.native_layer_norm(total, shape, *weights, eps)
        ctx.save_for_backward(total, mean, deviation)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        total, mean, deviation = ctx.saved_tensors
        w, b = ctx.lent
        d_total, d_weight, d_bias = aten.native_layer_norm_backward(
            gradient, total, [total.shape[-1]], mean, deviation,
            _for(total, w), _for(total, b), [True, True, True],
        )  # fmt: skip
        d_update = None
        if ctx.needs_input_grad[1]:
            mask = ctx.mask
            d_update = d_total if mask is None else mask.scale(d_total.dtype).mul_(d_total)
        vectors = add_gradient(w, d_weight), add_gradient(b, d_bias)
        return d_total, d_update, None, *vectors, None, None, None


def _for(values: Tensor, vector: Lent) -> Tensor:
    """The vector as the kernel wants it: a CPU's takes float32 beside bfloat16, a GPU's not."""
    return vector.values.to(values.dtype) if values.is_cuda else vector.values


class TakeRows(Function):
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
    result: Tensor = TakeRows.apply(values, index)
    return result


def truncated_normal_(weight: Tensor, deviation: float) -> None:
    """Fill `weight` from a normal distribution cut off at two deviations, as published."""
    torch.nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
