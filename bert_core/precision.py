"""In which number format the encoder computes.

The parameters are float32 always. `computing_in(model, torch.bfloat16)` gives every layer a
bfloat16 copy of its parameters, made once and used by every forward pass inside the block;
gradients flow back to the float32 parameters. Outside the block a model computes in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["auto", "bf16", "float32"]


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


class _Copy(torch.autograd.Function):
    """Stand `copy` in for `parameter`, whose gradient is then that of the copy."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, copy: Tensor) -> Tensor:
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.float(), None


class LowPrecision(nn.Module):
    """A module whose parameters may be computed with in a lower precision."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[str, Tensor] = {}

    def computed(self, name: str) -> Tensor:
        """The parameter `name` in the number format of the current block."""
        parameter = getattr(self, name)
        copy = self._copies.get(name)
        return parameter if copy is None else _Copy.apply(parameter, copy)


@contextmanager
def computing_in(
    model: nn.Module, dtype: torch.dtype, copies: dict[str, Tensor] | None = None
) -> Iterator[None]:
    """Compute in `dtype` inside the block.

    `copies` holds the model's parameters in `dtype` by name where the caller keeps them; they are
    made here otherwise.
    """
    if dtype == torch.float32:
        yield
        return
    modules = [(n, m) for n, m in model.named_modules() if isinstance(m, LowPrecision)]
    try:
        for prefix, module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                full_name = f"{prefix}.{name}" if prefix else name
                module._copies[name] = (
                    parameter.detach().to(dtype) if copies is None else copies[full_name]
                )
        yield
    finally:
        for _, module in modules:
            module._copies.clear()
