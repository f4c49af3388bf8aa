"""Muon: steps that turn and do not stretch, for the matrices inside the layers.

Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024); the iteration, its
coefficients and the two rates are those of `torch.optim.Muon`.
"""

import math
from collections import defaultdict
from typing import ClassVar

import torch
from torch import Tensor

from bert_core.training.depth import published_matrices
from bert_core.training.optimization.adamw import AdamW
from bert_core.training.optimization.configuration import OptimizerName
from bert_core.training.optimization.parameter_groups import Kind, Segment, hidden_matrix_or_other

_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_NUM_ITERATIONS = 5
_EPS = 1e-7


class Muon(AdamW):
    """Orthogonalized momentum for the layers' matrices; AdamW for tables, heads and vectors."""

    name: ClassVar[OptimizerName] = "muon"

    @staticmethod
    def _kind(name: str, parameter: Tensor) -> Kind:
        return hidden_matrix_or_other(name, parameter)

    @classmethod
    def _moments(cls, kind: Kind) -> tuple[str, ...]:
        return ("momentum",) if kind == "hidden" else super()._moments(kind)

    def _update(self, segment: Segment, learning_rate: float, divisor: Tensor | None) -> None:
        if segment.group.kind != "hidden":
            super()._update(segment, learning_rate, divisor)
            return
        moves = 1 - self._is_skipped  # [] 1.0 or 0.0
        gradients = self._finite_gradients(segment, divisor)
        momentum = segment.moments["momentum"].lerp_(
            gradients, (1 - self.config.muon_momentum) * moves
        )
        looked_ahead = gradients.lerp_(momentum, self.config.muon_momentum)  # Nesterov's
        segment.values.mul_(1 - learning_rate * segment.group.weight_decay * moves)
        updates = self._by_shape(segment, looked_ahead)
        for shape, matrices in self._by_shape(segment, segment.values).items():
            rate = learning_rate * self._rate_scale(*shape)
            steps = orthogonalized(torch.stack(updates[shape])).float()
            torch._foreach_sub_(matrices, list(steps.mul_(rate * moves).unbind()))

    def _by_shape(self, segment: Segment, buffer: Tensor) -> dict[tuple[int, int], list[Tensor]]:
        by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for name, view in self.arena.views(buffer, segment.begin).items():
            for matrix in published_matrices(name, view):
                by_shape[matrix.shape[0], matrix.shape[1]].append(matrix)
        return by_shape

    def _rate_scale(self, num_rows: int, num_columns: int) -> float:
        if self.config.muon_rate == "original":
            return math.sqrt(max(1.0, num_rows / num_columns))
        return 0.2 * math.sqrt(max(num_rows, num_columns))


def orthogonalized(matrices: Tensor) -> Tensor:
    """[N, rows, columns] -> the same in bfloat16, singular values moved to between 0.7 and 1.2.

    Newton and Schulz's iteration with a polynomial of degree five.
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    found = matrices.bfloat16()
    if is_tall:
        found = found.mT
    found = found / found.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(_NUM_ITERATIONS):
        gram = found @ found.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        found = torch.baddbmm(found, polynomial, found, beta=a)
    return found.mT if is_tall else found
