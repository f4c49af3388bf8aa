"""Figures of a model over any number of batches, on one process or many."""

from collections.abc import Iterable

import torch

from bert_core.backends.precision import Precision
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.ranks import sum_over_ranks


def evaluate(
    model: TrainableModel, batches: Iterable[Batch], *, precision: Precision = "float32"
) -> dict[str, float]:
    """Each figure of `model.figure_names`: its exact mean over the items of all batches.

    Without dropout or gradients, on the model's device. With `torch.distributed` initialised every
    rank calls it with its own batches, or none, and all get the same figures. Raises ValueError
    if no item counts on any rank, or for a batch that the model cannot take.
    """
    names, device = model.figure_names, model.device
    totals = torch.zeros(len(names), dtype=torch.float64, device=device)
    counts = [0] * len(names)
    with model.precision(precision):
        for batch in batches:
            sums = model.evaluation_sums(batch.to(device))
            totals += torch.stack([sums[name].total.detach().double() for name in names])
            counts = [
                count + sums[name].num_items for name, count in zip(names, counts, strict=True)
            ]
    # A rank without a batch must build the table on the same kind of device as the others.
    table = torch.stack([totals, torch.tensor(counts, dtype=torch.float64, device=device)])
    figures = {}
    for name, total, count in zip(names, *sum_over_ranks(table).tolist(), strict=True):
        if not count:
            raise ValueError(f"there is nothing to average: no item counted for {name}")
        figures[name] = total / count
    return figures
