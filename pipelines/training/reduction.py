"""Adding up what the ranks counted, so that the figures do not depend on how many there are."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from bert_core.training.evaluation import SumAndCount


def sum_over_ranks(values: NDArray[Any]) -> NDArray[Any]:
    """The sum of the ranks' arrays, element by element; outside of a training run the array itself.

    All ranks call it, with arrays of one shape and type.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return values
    import ray.train.torch  # a second that figures outside of a training run need not spend

    # Where the ranks exchange: GPUs do it for what a CPU counted, too.
    table = torch.from_numpy(values.copy()).to(ray.train.torch.get_device())
    dist.all_reduce(table)
    return table.cpu().numpy()


def means_over_ranks(
    names: Sequence[str],
    num_batches: int,
    sums: Iterable[tuple[int, Mapping[str, SumAndCount]]],
    *,
    may_be_empty: Collection[str] = (),
) -> dict[str, float]:
    """Each figure's mean over all batches of all ranks, the same to the bit for any number of them.

    `sums` holds what this rank's batches add up to, each with its number among `num_batches`; a
    rank may have none. A figure that counted nothing on any rank is left out where it
    `may_be_empty`; for another one ValueError is raised.
    """
    rows = np.zeros((num_batches, len(names), 2))
    for number, batch in sums:
        for column, name in enumerate(names):
            total, count = batch[name]
            rows[number, column] = float(total), count
    # Every row comes from one rank and is exact; they are added in the order of the batches.
    totals = sum_over_ranks(rows).sum(axis=0)
    for name, (_, count) in zip(names, totals, strict=True):
        if not count and name not in may_be_empty:
            raise ValueError(f"there is nothing to average: no item counted for {name}")
    return {
        name: float(total / count)
        for name, (total, count) in zip(names, totals, strict=True)
        if count
    }
