"""Training no longer than the held-out loss falls, and publishing the weights it was least with."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_core.model.catalogue import TrainableModel
from bert_core.training.state import read_weights, save_model
from pipelines.training.results import BEST_FOLDER
from pipelines.training.telemetry.curve import heldout_loss


class Best:
    """The weights with the least held-out loss so far; every rank holds them.

    Which evaluation was best, and whether there is patience left, is a function of the training
    run's curve, so that a resumed run stops after the same step with the same weights.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience  # evaluations without a lower loss
        self._weights: dict[str, Tensor] = {}

    def consider(self, model: TrainableModel, history: Sequence[Mapping[str, Any]]) -> None:
        """Keep the weights of `model` where the last evaluation of the curve is its best."""
        losses = heldout_losses(history)
        if losses and _place_of_least(losses) == len(losses) - 1:
            self._weights = {
                name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()
            }

    def is_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the patience is used up."""
        losses = heldout_losses(history)
        return bool(losses) and len(losses) - 1 - _place_of_least(losses) >= self._patience

    def put_into(self, model: TrainableModel) -> None:
        """Give `model` the best weights; those it has where nothing was evaluated."""
        if self._weights:
            model.load_state_dict(self._weights)

    def save(self, folder: Path, model: TrainableModel) -> None:
        """Write the best weights, where there are any, as a model into a checkpoint."""
        if not self._weights:
            return
        present = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            self.put_into(model)
            try:
                save_model(folder / BEST_FOLDER, model)
            finally:
                model.load_state_dict(present)

    def restore(self, folder: Path) -> None:
        """Read the best weights of a checkpoint."""
        best = folder / BEST_FOLDER
        self._weights = read_weights(best) if best.is_dir() else {}


def heldout_losses(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """The held-out loss of every evaluation of a curve; what is no number counts as infinite."""
    losses = [loss for loss in map(heldout_loss, history) if loss is not None]
    return [loss if math.isfinite(loss) else math.inf for loss in losses]


def best_step(history: Sequence[Mapping[str, Any]]) -> int:
    """The step whose evaluation has the least held-out loss; raises ValueError without any."""
    steps = [point["step"] for point in history if heldout_loss(point) is not None]
    return int(steps[_place_of_least(heldout_losses(history))])


def _place_of_least(losses: Sequence[float]) -> int:
    """The first of equal ones."""
    return min(range(len(losses)), key=losses.__getitem__)
