"""What the ranks of a training tell each other beside their gradients."""

from typing import TypeVar

import torch
import torch.distributed as dist

from bert_core.training.ranks import num_ranks

Value = TypeVar("Value")


def told(value: Value, device: torch.device) -> Value:
    """What the first rank says; all ranks call it."""
    if num_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0, device=device)
    return box[0]


def ranks_where(is_so: bool, device: torch.device) -> list[int]:
    """The ranks on which it is so; all ranks call it, and none returns before all have come."""
    if num_ranks() == 1:
        return [0] if is_so else []
    flags = torch.zeros(num_ranks(), dtype=torch.int64, device=device)
    flags[dist.get_rank()] = int(is_so)
    dist.all_reduce(flags)
    return [rank for rank, flag in enumerate(flags.tolist()) if flag]
