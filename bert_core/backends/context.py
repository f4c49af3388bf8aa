"""What a thread computes with: a backend, a number format, and the weights of that format.

The parameters are float32 always. Inside `computing(dtype)` hidden states are in that format;
outside they are in that of the parameters. Blocks nest, and each thread has its own.

The plain backend casts a parameter where it is used. The cpu backend computes with copies of the
matrices, made once a block. A training step also gives it a `main_grad` for each parameter: it
then accumulates gradients there, in float32, and returns none to autograd, so that no gradient is
cast, stored or added twice. Without `main_grad` autograd accumulates gradients as usual. Without
gradients it can keep matrices packed, which makes their products faster.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

# A product in bfloat16 is cast before it is added; a chunk of it stays in a CPU's cache.
_CHUNK_ELEMENTS = 1 << 20


class ComputeWeight(NamedTuple):
    """What a layer uses in place of a parameter, and the buffer for its gradient."""

    values: Tensor
    main_grad: Tensor | None = None  # float32, whatever the format of the values


class Packed(NamedTuple):
    """A matrix as a backend's products read it fastest, and its bias, in one number format."""

    matrix: Tensor
    bias: Tensor
    versions: tuple[int, int]  # of the two parameters


class PackedWeights(dict[tuple[Tensor, Tensor], Packed]):
    """What is packed, by the parameters it was made of. Copies and pickles are empty."""

    def __reduce__(self) -> tuple[type["PackedWeights"], tuple[()]]:
        return PackedWeights, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """How a thread computes."""

    backend: str | None = None  # None: the device decides
    dtype: torch.dtype | None = None  # of hidden states; None: that of the parameters
    # By parameter; copies of those that are missing are added when they are first used.
    weights: dict[Tensor, ComputeWeight] = field(default_factory=dict)
    # For blocks without gradients; missing ones are added when they are first used.
    packed: PackedWeights | None = None


class _Thread(threading.local):
    """Not a ContextVar, which torch's compiler cannot read."""

    context = Context()


_thread = _Thread()


def current_context() -> Context:
    """How this thread computes now."""
    return _thread.context


@contextmanager
def in_context(context: Context) -> Iterator[None]:
    """Compute as `context` says inside the block, on this thread."""
    before, _thread.context = _thread.context, context
    try:
        yield
    finally:
        _thread.context = before


def computing(
    dtype: torch.dtype | None,
    weights: dict[Tensor, ComputeWeight] | None = None,
    packed: PackedWeights | None = None,
) -> AbstractContextManager[None]:
    """A block in which this thread computes in `dtype`, with `weights` by their parameters.

    Weights must not change in it: they are copied once. With `packed` it must compute no gradients;
    newly packed weights are added there, for the next block.
    """
    return in_context(replace(_thread.context, dtype=dtype, weights=weights or {}, packed=packed))


def hidden_dtype(parameter: Tensor) -> torch.dtype:
    """The number format of hidden states in a model with this parameter."""
    return _thread.context.dtype or parameter.dtype


def compute_weight(parameter: Tensor) -> ComputeWeight:
    """What a layer computes with in place of `parameter`; outside a block the parameter itself.

    Matrices are copied to the number format; vectors (biases, normalization) stay float32.
    """
    context = _thread.context
    weight = context.weights.get(parameter)
    if weight is None:
        values = parameter.detach()  # the functions that use it return its gradient
        if context.dtype is None:
            return ComputeWeight(values)
        weight = ComputeWeight(values.to(context.dtype) if values.ndim > 1 else values)
        context.weights[parameter] = weight
    return weight


def main_grad(parameter: Tensor) -> Tensor | None:
    """The buffer that the gradient of `parameter` is added to, if any; copies nothing."""
    weight = _thread.context.weights.get(parameter)
    return None if weight is None else weight.main_grad


class _NoGradients:
    """In place of autograd's context: nothing is kept for a backward pass."""

    needs_input_grad = (False,) * 16

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        pass


def applied(function: type[Function], *arguments: Any) -> Any:
    """What `function.apply` gives; if gradients are off, by its forward pass alone.

    Large products evict from the cache what autograd's bookkeeping reads. With packed biases, this
    took a tenth off the time of a text of ten tokens.
    """
    if torch.is_grad_enabled():
        return function.apply(*arguments)
    return function.forward(_NoGradients(), *arguments)


def add_gradient(weight: ComputeWeight, gradient: Tensor) -> Tensor | None:
    """Add `gradient` to `main_grad` and return None; without `main_grad` return it."""
    if weight.main_grad is None:
        return gradient
    weight.main_grad.add_(gradient)
    return None


def add_product(weight: ComputeWeight, left: Tensor, right: Tensor) -> Tensor | None:
    """`add_gradient` of the matrix product of `left` and `right`, computed in place."""
    main_grad = weight.main_grad
    if main_grad is None:
        return left @ right
    if main_grad.dtype == left.dtype:
        main_grad.addmm_(left, right)
        return None
    num_chunks = -(-main_grad.numel() // _CHUNK_ELEMENTS)
    rows = -(-left.shape[0] // num_chunks)
    for part, left_part in zip(main_grad.split(rows), left.split(rows), strict=True):
        part.add_(left_part @ right)
    return None
