"""In which number format the encoder computes, and where its gradients are added up.

The parameters are float32 always. Inside `computing_in(model, dtype)` every layer computes with
copies of its matrices in `dtype`, made once and used by every forward pass in the block; outside,
a model computes in float32 with its parameters themselves.

A training step lends its layers, beside the copies, places to add gradients to. The layers then
add them up there themselves, in float32, and tell autograd nothing: no gradient is cast, stored
or added twice. Without such places gradients take autograd's usual way.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

Precision = Literal["auto", "bf16", "float32"]

# A product in bfloat16 is cast before it is added; a piece of it stays in a CPU's cache.
_PIECE_ELEMENTS = 1 << 20


def compute_dtype(precision: Precision, device: torch.device | str) -> torch.dtype:
    """The number format for `precision`; "auto" takes bfloat16 where the hardware multiplies it."""
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


class Lent(NamedTuple):
    """What a layer computes with in place of a parameter, and where its gradient is added."""

    values: Tensor
    gradient: Tensor | None = None  # float32, whatever the format of the values


class Computing(nn.Module):
    """A module that computes with what it was lent for its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self._lent: dict[str, Lent] = {}

    def lent(self, name: str) -> Lent:
        """What stands for the parameter `name` now; the parameter itself outside of a block."""
        lent = self._lent.get(name)
        if lent is None:
            # Sharing memory but not history: the functions that use it return its gradient.
            return Lent(getattr(self, name).detach())
        return lent


def add_gradient(lent: Lent, gradient: Tensor) -> Tensor | None:
    """Add `gradient` to its place and return None, or return it where there is no place."""
    if lent.gradient is None:
        return gradient
    lent.gradient.add_(gradient)
    return None


def add_product(lent: Lent, left: Tensor, right: Tensor) -> Tensor | None:
    """`add_gradient` of the matrix product of `left` and `right`, computed in place."""
    if lent.gradient is None:
        return left @ right
    if lent.gradient.dtype == left.dtype:
        lent.gradient.addmm_(left, right)
        return None
    num_pieces = -(-lent.gradient.numel() // _PIECE_ELEMENTS)
    rows = -(-left.shape[0] // num_pieces)
    for part, some in zip(lent.gradient.split(rows), left.split(rows), strict=True):
        part.add_(some @ right)
    return None


@contextmanager
def computing_in(
    model: nn.Module, dtype: torch.dtype, lent: Mapping[str, Lent] | None = None
) -> Iterator[None]:
    """Compute in `dtype` inside the block, with `lent` by parameter name where it is given.

    Without it every matrix is copied here. Vectors (biases, normalization) stay float32.
    """
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, Computing)]
    try:
        for prefix, module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                full_name = f"{prefix}.{name}" if prefix else name
                if lent is not None:
                    module._lent[name] = lent[full_name]
                elif parameter.ndim > 1:
                    module._lent[name] = Lent(parameter.detach().to(dtype))
        yield
    finally:
        for _, module in modules:
            module._lent.clear()
