"""The ranks of a training run: which one this is, and their collective operations.

All ranks call the collective operations in the same order. Ray is imported in functions: figures
are added up outside of training runs too, which need not spend a second on it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from bert_core.training.arena import num_ranks

if TYPE_CHECKING:  # who adds figures up need not read, nor depend on, the training loop
    from bert_core.model.catalogue import Sum


Value = TypeVar("Value")


def rank_and_world_size() -> tuple[int, int]:
    """Rank of this worker and how many there are."""
    import ray.train

    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def broadcast(value: Value, device: torch.device) -> Value:
    """The value of the first rank, on all of them; all ranks call it."""
    if num_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0, device=device)
    return box[0]


def all_gather(value: Value) -> list[Value]:
    """The value of each rank, in their order; all ranks call it."""
    values = [value] * num_ranks()
    if num_ranks() > 1:
        dist.all_gather_object(values, value)
    return values


def sum_over_ranks(values: NDArray[Any]) -> NDArray[Any]:
    """The sum of the ranks' arrays, element by element; outside of a training run the array itself.

    All ranks call it, with arrays of one shape and type.
    """
    if num_ranks() == 1:
        return values
    import ray.train.torch

    # Where the ranks exchange: GPUs do it for what a CPU counted, too.
    table = torch.from_numpy(values.copy()).to(ray.train.torch.get_device())
    dist.all_reduce(table)
    return table.cpu().numpy()


def means_over_ranks(
    names: Sequence[str], num_batches: int, sums: "Iterable[tuple[int, Mapping[str, Sum]]]"
) -> dict[str, float]:
    """Each figure's mean over all batches of all ranks, the same to the bit for any number of them.

    `sums` holds what this rank's batches add up to, each with its number among `num_batches`; a
    rank may have none. Raises ValueError for a figure that counted nothing on any rank.
    """
    rows = np.zeros((num_batches, len(names), 2))
    for number, batch in sums:
        for column, name in enumerate(names):
            total, count = batch[name]
            rows[number, column] = float(total), count
    # Every row comes from one rank and is exact; they are added in the order of the batches.
    totals = sum_over_ranks(rows).sum(axis=0)
    for name, (_, count) in zip(names, totals, strict=True):
        if not count:
            raise ValueError(f"there is nothing to average: no item counted for {name}")
    return {name: float(total / count) for name, (total, count) in zip(names, totals, strict=True)}
