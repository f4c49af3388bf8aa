"""In which number format the encoder computes, and where its gradients are added up.

The parameters are float32 always. Inside `autocast(model, dtype)` the model's hidden states are in
`dtype`; outside they are float32. Blocks nest, and each thread has its own.

The plain backend casts a parameter where it is used. The cpu backend computes with copies of the
matrices, made once and used by every forward pass in the block. A training step gives it, beside
the copies, a `main_grad` for each parameter. It then adds gradients up there itself, in float32,
and tells autograd nothing: no gradient is cast, stored or added twice. Without `main_grad`
gradients take autograd's usual way.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

Precision = Literal["auto", "bf16", "float32"]

# A product in bfloat16 is cast before it is added; a chunk of it stays in a CPU's cache.
_CHUNK_ELEMENTS = 1 << 20


def compute_dtype(precision: Precision, device: torch.device | str) -> torch.dtype:
    """The number format for `precision`; "auto" takes bfloat16 where the hardware multiplies it.

    Raises ValueError for any other word.
    """
    if precision == "float32":
        return torch.float32
    if precision == "bf16":
        return torch.bfloat16
    if precision != "auto":
        raise ValueError(f"precision must be auto, bf16 or float32, got {precision!r}")
    return torch.bfloat16 if _multiplies_bfloat16(torch.device(device)) else torch.float32


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # What torch itself asks before it picks a bfloat16 kernel on a CPU; there is no public name.
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


class ComputeWeight(NamedTuple):
    """What a layer computes with in place of a parameter, and where its gradient is added."""

    values: Tensor
    main_grad: Tensor | None = None  # float32, whatever the format of the values


class _Blocks(threading.local):
    """What the blocks of a thread say; a compiler reads it, which it can't do with a ContextVar."""

    def __init__(self) -> None:
        # By parameter; never changed, only replaced.
        self.dtypes: Mapping[Tensor, torch.dtype] = {}
        self.weights: Mapping[Tensor, ComputeWeight] = {}


_blocks = _Blocks()


def hidden_dtype(parameter: Tensor) -> torch.dtype:
    """What the model of this parameter computes in now."""
    return _blocks.dtypes.get(parameter, parameter.dtype)


def compute_weight(parameter: Tensor) -> ComputeWeight:
    """What stands for `parameter` now; the parameter itself outside of a block."""
    weight = _blocks.weights.get(parameter)
    # Sharing memory but not history: the functions that use it return its gradient.
    return ComputeWeight(parameter.detach()) if weight is None else weight


def blocks_again() -> Callable[[], AbstractContextManager[None]]:
    """What opens the blocks that hold now another time, on whichever thread."""
    dtypes, weights = _blocks.dtypes, _blocks.weights

    @contextmanager
    def again() -> Iterator[None]:
        before = _blocks.dtypes, _blocks.weights
        _blocks.dtypes, _blocks.weights = dtypes, weights
        try:
            yield
        finally:
            _blocks.dtypes, _blocks.weights = before

    return again


@contextmanager
def compute_with(weights: Mapping[Tensor, ComputeWeight]) -> Iterator[None]:
    """Compute with `weights`, by parameter, inside the block; others stay what they were."""
    before = _blocks.weights
    _blocks.weights = {**before, **weights}
    try:
        yield
    finally:
        _blocks.weights = before


@contextmanager
def autocast(
    model: nn.Module,
    dtype: torch.dtype,
    weights: Mapping[Tensor, ComputeWeight] | None = None,
    *,
    copies: bool = True,
) -> Iterator[None]:
    """Compute in `dtype` inside the block, with `weights` for those parameters that have any.

    Of the others matrices are copied here, unless there are to be no `copies`; vectors (biases,
    normalization) stay float32.
    """
    given = weights or {}
    parameters = list(model.parameters())
    before = _blocks.dtypes
    _blocks.dtypes = {**before, **dict.fromkeys(parameters, dtype)}
    if copies:
        given = {
            parameter: given[parameter] if parameter in given else _copied(parameter, dtype)
            for parameter in parameters
        }
    try:
        with compute_with(given):
            yield
    finally:
        _blocks.dtypes = before


def _copied(parameter: Tensor, dtype: torch.dtype) -> ComputeWeight:
    values = parameter.detach()
    return ComputeWeight(values.to(dtype) if values.ndim > 1 else values)


def add_gradient(weight: ComputeWeight, gradient: Tensor) -> Tensor | None:
    """Add `gradient` to `main_grad` and return None, or return it where there is none."""
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
