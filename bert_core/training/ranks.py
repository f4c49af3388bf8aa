"""The ranks of a step: the processes of `torch.distributed`, or this one alone."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

_CHUNK = 1 << 22  # elements that are summed at once


def num_ranks() -> int:
    """How many processes take each step together; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def this_rank() -> int:
    """The number of this process among them, from 0."""
    return dist.get_rank() if num_ranks() > 1 else 0


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum `values` over the ranks, in place. All of them call it."""
    if num_ranks() > 1:
        dist.all_reduce(values)
    return values


def checksum(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """[2] int64 by which ranks compare tensors: the sum of all bits, plain and by position.

    On the device, exact in any order.
    """
    total = torch.zeros(2, dtype=torch.int64, device=device)
    position = 0
    for tensor in tensors:
        # As words of four bytes, or of one if the element size is no multiple.
        flat = tensor.detach().contiguous().view(-1)
        words = flat.view(torch.int32) if flat.element_size() % 4 == 0 else flat.view(torch.uint8)
        for part in words.split(_CHUNK):
            places = torch.arange(position, position + len(part), device=device)
            total[0] += part.sum(dtype=torch.int64)
            total[1] += (part.long() * (2 * places + 1)).sum()
            position += len(part)
    return total
