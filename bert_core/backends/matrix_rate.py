"""The measured matrix multiplication rate of this machine, to compare a step's speed with."""

import time

import torch

_CPU_WIDTH, _GPU_WIDTH = 1024, 8192  # of square matrices, large enough to reach the rate
_FEWEST_PRODUCTS = 3


def measured_matrix_rate(
    dtype: torch.dtype, device: torch.device | str = "cpu", *, seconds: float = 0.3
) -> float:
    """Operations per second of the fastest of the square products that fit into `seconds`.

    On a CPU with the threads that torch has now; ranks of one machine that measure at the same
    time share it as they do when they train. No generator of random numbers is drawn from.
    """
    device = torch.device(device)
    width = _CPU_WIDTH if device.type == "cpu" else _GPU_WIDTH
    left = torch.full((width, width), 0.5, dtype=dtype, device=device)
    right, product = torch.full_like(left, 0.25), torch.empty_like(left)
    best, taken = float("inf"), 0
    ends = time.perf_counter() + seconds
    while taken <= _FEWEST_PRODUCTS or time.perf_counter() < ends:
        started = time.perf_counter()
        torch.mm(left, right, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if taken:  # the first one compiles
            best = min(best, time.perf_counter() - started)
        taken += 1
    return 2 * width**3 / best
