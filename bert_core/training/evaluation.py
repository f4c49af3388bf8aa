"""Figures of a model over any number of batches, on one process or many."""

from collections.abc import Iterable

from bert_core.backends.precision import Precision
from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.metrics import RunningSums


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
