"""Figures of a model over any number of batches, on one process or many."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.ranks import sum_over_ranks

SumAndCount = tuple[Tensor, int]


def evaluate(
    model: TrainableModel, batches: Iterable[Batch], *, precision: Precision = "float32"
) -> dict[str, float]:
    """Each figure of `model.figure_names`: its exact mean over the items of all batches.

    Without dropout or gradients, on the model's device. With `torch.distributed` initialised every
    rank calls it with its own batches, or none, and all get the same figures. Raises ValueError
    where no item counts on any rank, or for a batch that the model cannot take.
    """
    sums = RunningSums(model.device)
    with model.precision(precision):
        for batch in batches:
            sums.add(model.evaluation_sums(batch.to(model.device)))
    return sums.means(model.figure_names)


class RunningSums:
    """Adds sums and counts of any number of batches to exact means.

    The sums stay on `device`, that of the model; `means` is where the host waits for it. A rank
    without a batch must name the same kind of device as the others.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, sums: Mapping[str, SumAndCount]) -> None:
        """Add the sums of one batch."""
        for name, (total, count) in sums.items():
            total = total.detach().to(self._device, torch.float64)
            self._totals[name] = self._totals[name] + total if name in self._totals else total
            self._counts[name] = self._counts.get(name, 0) + count

    def means(self, names: Iterable[str] | None = None) -> dict[str, float]:
        """Each figure's mean over everything added, on all ranks where there are several.

        Every rank must ask for the same names; a rank that added nothing has to give them.
        Raises ValueError, on all ranks alike, where no item counted for a name.
        """
        wanted = sorted(self._totals if names is None else names)
        if not wanted:
            raise ValueError("there is nothing to average: no batch was added")
        table = sum_over_ranks(self._table(wanted))
        totals, counts = table.cpu().tolist()
        for name, count in zip(wanted, counts, strict=True):
            if not count:
                raise ValueError(f"there is nothing to average: no item counted for {name}")
        return {
            name: total / count for name, total, count in zip(wanted, totals, counts, strict=True)
        }

    def _table(self, names: Sequence[str]) -> Tensor:
        """[2, len(names)] totals and counts on the device, zeros where nothing was added."""
        zero = torch.zeros((), dtype=torch.float64, device=self._device)
        totals = torch.stack([self._totals.get(name, zero) for name in names])
        counts = [self._counts.get(name, 0) for name in names]
        return torch.stack([totals, torch.tensor(counts, dtype=torch.float64, device=self._device)])
