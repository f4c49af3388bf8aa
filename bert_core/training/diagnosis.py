"""The largest gradients and parameters of a step that was skipped, by name."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.optimization import Optimizer
from bert_core.training.step import step_gradients

_NUM_NAMED = 3


class Diagnosis(NamedTuple):
    """Names with their norms, the largest first; NaN counts as largest."""

    gradients: dict[str, float]
    parameters: dict[str, float]

    def __str__(self) -> str:
        return f"largest gradients: {_listed(self.gradients)}; largest parameters: " + _listed(
            self.parameters
        )


def diagnose(
    model: TrainableModel,
    optimizer: Optimizer,
    micro_batches: Sequence[tuple[int, Batch]],
    *,
    seed: int,
    step: int,
    dtype: torch.dtype = torch.float32,
) -> Diagnosis:
    """Compute the gradient of `step` again, and name what is largest. All ranks call it.

    Skipped steps have not changed the weights that the step was computed with.
    """
    step_gradients(model, optimizer, micro_batches, seed=seed, step=step, dtype=dtype)
    arena = optimizer.arena
    return Diagnosis(
        gradients=_largest(arena.views(arena.gradients)),
        parameters=_largest(arena.views(arena.values)),
    )


def _largest(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    norms = {name: float(torch.linalg.vector_norm(each)) for name, each in tensors.items()}
    order = sorted(norms, key=lambda name: _rank(norms[name]), reverse=True)
    return {name: norms[name] for name in order[:_NUM_NAMED]}


def _rank(norm: float) -> float:
    return math.inf if math.isnan(norm) else norm


def _listed(norms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} (norm {norm:.4g})" for name, norm in norms.items())
