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


def all_told(text: str, device: torch.device) -> list[str]:
    """What each rank says, in the order of the ranks; all of them call it."""
    if num_ranks() == 1:
        return [text]
    data = text.encode()
    longest = torch.tensor([max(1, len(data))], device=device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    rows = torch.zeros(num_ranks(), int(longest), dtype=torch.uint8)
    rows[dist.get_rank(), : len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    rows = rows.to(device)
    dist.all_reduce(rows)  # the rows of the others are zeros here
    return [bytes(row).rstrip(b"\0").decode() for row in rows.tolist()]


def ranks_where(is_so: bool, device: torch.device) -> list[int]:
    """The ranks on which it is so; all ranks call it, and none returns before all have come."""
    if num_ranks() == 1:
        return [0] if is_so else []
    flags = torch.zeros(num_ranks(), dtype=torch.int64, device=device)
    flags[dist.get_rank()] = int(is_so)
    dist.all_reduce(flags)
    return [rank for rank, flag in enumerate(flags.tolist()) if flag]
