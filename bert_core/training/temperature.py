"""Probabilities that mean what they say: one temperature for all logits (Guo et al., 2017).

Fine-tuned models are too sure of themselves. Divided by a temperature, which items that were not
learned from decide, their logits give probabilities that can be acted upon; no answer changes. The
last layer is linear, so the division is one of its weights, and every export has it.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from bert_core.batch import LabelledBatch
from bert_core.model.task_models import TaskModel

# Of these one is taken: steps of 2% between 1/8 and 8. A grid has no last digits that ranks or
# machines could disagree on.
TEMPERATURES: Final = 2.0 ** (np.arange(-96, 97) / 32)
_DEVIATION: Final = np.log(2.0)  # of the logarithm, before anything was seen


@torch.inference_mode()
def losses_by_temperature(
    model: TaskModel, batches: Iterable[tuple[int, LabelledBatch]], num_batches: int
) -> NDArray[np.float64]:
    """[num_batches, temperatures] sums of the loss over the labels of each batch.

    Its logits are divided by each temperature. Rows of batches that are not given stay 0: those of
    other ranks, to be added.
    """
    rows = np.zeros((num_batches, len(TEMPERATURES)))
    for number, batch in batches:
        logits = model.answers(batch).float()
        for place, temperature in enumerate(TEMPERATURES):
            rows[number, place] = float(model.loss_sum(logits / temperature, batch.labels))
    return rows


def best_temperature(losses: NDArray[np.float64]) -> float:
    """The temperature with the least loss of all labels: `losses` are sums, one a temperature.

    Few items, all of them right, would ask for boundless certainty. Therefore a temperature counts
    as the less likely the farther it is from 1, with a factor of 2 as the standard deviation.
    """
    prior = (np.log(TEMPERATURES) / _DEVIATION) ** 2 / 2
    return float(TEMPERATURES[np.argmin(losses + prior)])


@torch.no_grad()
def divide_logits(model: TaskModel, temperature: float) -> None:
    """Divide what the last layer of `model` gives by `temperature`, in its weights."""
    layer = model.logit_layer()
    layer.weight.div_(temperature)
    layer.bias.div_(temperature)
