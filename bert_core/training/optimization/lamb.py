"""LAMB: Adam whose step on each matrix is as long as a share of the matrix itself.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020),
algorithm 2, with the trust ratio |x| / |update| itself (phi the identity).
"""

from typing import ClassVar

import torch
from torch import Tensor

from bert_core.training.depth import published_matrices
from bert_core.training.optimization.configuration import OptimizerName
from bert_core.training.optimization.optimizer import Optimizer
from bert_core.training.optimization.parameter_groups import Kind, Segment


class LAMB(Optimizer):
    """LAMB; biases and normalization follow Adam, without a trust ratio and without decay."""

    name: ClassVar[OptimizerName] = "lamb"

    @classmethod
    def _moments(cls, kind: Kind) -> tuple[str, ...]:
        return ("mean", "variance")

    def _update(self, segment: Segment, learning_rate: float, divisor: Tensor | None) -> None:
        direction = self._direction(segment, divisor)
        if segment.group.kind == "vector":
            direction.mul_(learning_rate)
        else:
            direction.add_(segment.values, alpha=segment.group.weight_decay)
            steps = self._matrices(segment, direction)
            lengths = torch.stack(torch._foreach_norm(self._matrices(segment, segment.values)))
            step_lengths = torch.stack(torch._foreach_norm(steps))
            # What is zero, or has a gradient of zero, is moved at the plain rate.
            has_ratio = (lengths > 0) & (step_lengths > 0)
            ratios = torch.where(has_ratio, lengths / step_lengths, 1.0) * learning_rate
            torch._foreach_mul_(steps, list(ratios.unbind()))
        segment.values.sub_(direction.mul_(1 - self._is_skipped))

    def _direction(self, segment: Segment, divisor: Tensor | None) -> Tensor:
        """Adam's update of the segment; its moments move on."""
        moves = 1 - self._is_skipped  # [] 1.0 or 0.0
        gradients = self._finite_gradients(segment, divisor)
        mean, variance = segment.moments["mean"], segment.moments["variance"]
        first, second = self.config.betas
        mean.lerp_(gradients, (1 - first) * moves)
        variance.lerp_(gradients.square(), (1 - second) * moves)
        segment.num_updates.add_(moves)
        count = segment.num_updates.clamp(min=1).double()
        denominator = (variance / (1 - second**count)).sqrt_().add_(self.config.eps)
        return mean.div(1 - first**count).div_(denominator)

    def _matrices(self, segment: Segment, buffer: Tensor) -> list[Tensor]:
        views = self.arena.views(buffer, segment.begin)
        return [part for name, view in views.items() for part in published_matrices(name, view)]
