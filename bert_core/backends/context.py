"""What a thread computes with: a backend, a number format, and the weights of that format.

The parameters are float32 always. Inside `computing(dtype)` hidden states are in that format;
outside they are in that of the parameters. Blocks nest, and each thread has its own.

The plain backend casts a parameter where it is used. The cpu backend computes with copies of the
matrices, made once a block. A training step also gives it a `main_grad` for each parameter, to
which it adds gradients in float32: autograd then casts, stores and adds none. Without gradients
it can keep matrices packed, which makes their products faster.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

Precision = Literal["auto", "bf16", "float32"]

# A product in bfloat16 is cast before it is added; a chunk of it stays in a CPU's cache.
_CHUNK_ELEMENTS = 1 << 20
_MEBIBYTE: Final = 1 << 20
# Names and numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


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
    # By parameter, those of blocks without gradients; missing ones are added at their first use.
    weights: dict[Tensor, ComputeWeight] = field(default_factory=dict)
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

    Weights must not change in it. With `packed` it computes no gradients and adds to it.
    """
    return in_context(replace(_thread.context, dtype=dtype, weights=weights or {}, packed=packed))


def compute_dtype(precision: Precision, device: torch.device | str) -> torch.dtype:
    """The number format for `precision`; "auto" takes bfloat16 where the hardware multiplies it.

    Raises ValueError for any other word.
    """
    if precision not in ("auto", "bf16", "float32"):
        raise ValueError(f"precision must be auto, bf16 or float32, got {precision!r}")
    is_low = precision == "bf16"
    if precision == "auto" and torch.device(device).type == "cuda":
        is_low = torch.cuda.get_device_capability(device) >= (8, 0)
    elif precision == "auto":
        # What torch itself asks before it picks a bfloat16 kernel; there is no public name.
        is_low = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if is_low else torch.float32


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

    It took a tenth off the time of a text of ten tokens.
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


def return_freed_memory() -> None:
    """Return freed blocks of a mebibyte and more to the kernel; nothing without glibc.

    For the time before a model is built and for the first steps: they compile their matrix
    products, which stay, and would leave holes between kept blocks, a tenth of the memory of a
    BERT-base.
    """
    _set_malloc(freed=_MEBIBYTE, padding=_MEBIBYTE // 8)


def keep_freed_memory() -> None:
    """Let this process keep freed blocks, so that later steps need no fresh pages; on glibc."""
    # Other threads than the first allocate from heaps of 64 MiB. An empty heap would be returned
    # whatever the threshold, unless the padding is as large: a worker's step did that each time.
    _set_malloc(freed=1024 * _MEBIBYTE, padding=64 * _MEBIBYTE)


def _set_malloc(*, freed: int, padding: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, freed)
        mallopt(_M_TRIM_THRESHOLD, freed)
        mallopt(_M_TOP_PAD, padding)
