"""The number format of a precision on a device."""

from typing import Literal

import torch

Precision = Literal["auto", "bf16", "float32"]


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
