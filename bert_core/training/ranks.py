"""The ranks of a step: the processes of `torch.distributed`, or this one alone."""

import torch.distributed as dist
from torch import Tensor


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
