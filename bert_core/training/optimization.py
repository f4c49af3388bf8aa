"""The optimizers AdamW, LAMB and Muon, by name."""

import math
from collections import defaultdict
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from bert_core.backends.context import hidden_dtype
from bert_core.training.optimizer import (
    Kind,
    OptimizationConfig,
    Optimizer,
    OptimizerName,
    Segment,
    layer_of,
)

# Of Muon's iteration.
_COEFFICIENTS = 3.4445, -4.7750, 2.0315
_NUM_ITERATIONS = 5
_EPS = 1e-7


class AdamW(Optimizer):
    """AdamW, one fused call for each group of parameters.

    Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
    """

    name: ClassVar[OptimizerName] = "adamw"

    def _update(self, segment: Segment, learning_rate: float, divisor: Tensor | None) -> None:
        adamw(
            [segment.values], [segment.gradients],
            [segment.moments["mean"]], [segment.moments["variance"]], [],
            [segment.num_updates],
            fused=True, grad_scale=divisor, found_inf=self._is_skipped,
            amsgrad=False, maximize=False,
            beta1=self.config.betas[0], beta2=self.config.betas[1], eps=self.config.eps,
            lr=learning_rate, weight_decay=segment.group.weight_decay,
        )  # fmt: skip


class LAMB(Optimizer):
    """Adam whose step on each matrix has a norm proportional to that of the matrix.

    You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes" (2020),
    algorithm 2, with the trust ratio |x| / |update| itself (phi the identity). Biases and
    normalization follow Adam, without a trust ratio and without decay.
    """

    name: ClassVar[OptimizerName] = "lamb"

    def _update(self, segment: Segment, learning_rate: float, divisor: Tensor | None) -> None:
        direction = self._direction(segment, divisor)
        if segment.group.kind == "vector":
            direction.mul_(learning_rate)
        else:
            direction.add_(segment.values, alpha=segment.group.weight_decay)
            steps = self._matrices(segment, direction)
            lengths = torch.stack(torch._foreach_norm(self._matrices(segment, segment.values)))
            step_lengths = torch.stack(torch._foreach_norm(steps))
            # A matrix or step of norm zero has no trust ratio.
            has_ratio = (lengths > 0) & (step_lengths > 0)
            ratios = torch.where(has_ratio, lengths / step_lengths, 1.0) * learning_rate
            torch._foreach_mul_(steps, list(ratios.unbind()))
        segment.values.sub_(direction.mul_(1 - self._is_skipped))

    def _direction(self, segment: Segment, divisor: Tensor | None) -> Tensor:
        """Adam's update of the segment; updates its moments."""
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


class Muon(AdamW):
    """Orthogonalized momentum for the layers' matrices; AdamW for tables, heads and vectors.

    Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024); the iteration and its
    coefficients are those of `torch.optim.Muon`, the rate its "match_rms_adamw". Its products are
    computed in the number format of the training step: a CPU that does not multiply bfloat16 would
    take ten times as long for them, and ranks on different CPUs would drift apart.
    """

    name: ClassVar[OptimizerName] = "muon"

    @classmethod
    def _kind(cls, name: str, parameter: Tensor) -> Kind:
        is_hidden = parameter.ndim > 1 and layer_of(name) is not None
        return "hidden" if is_hidden else super()._kind(name, parameter)

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
            # So that steps are as large as AdamW's, and one learning rate serves both.
            rate = learning_rate * (0.2 * math.sqrt(max(shape)))
            steps = orthogonalized(torch.stack(updates[shape])).float()
            torch._foreach_sub_(matrices, list(steps.mul_(rate * moves).unbind()))

    def _by_shape(self, segment: Segment, buffer: Tensor) -> dict[tuple[int, int], list[Tensor]]:
        by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for name, view in self.arena.views(buffer, segment.begin).items():
            for matrix in published_matrices(name, view):
                by_shape[matrix.shape[0], matrix.shape[1]].append(matrix)
        return by_shape


def orthogonalized(matrices: Tensor) -> Tensor:
    """[N, rows, columns] -> the same with singular values moved to between 0.7 and 1.2.

    Newton and Schulz's iteration with a polynomial of degree five, in the number format of the
    block around it (see `computing`).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    result = matrices.to(hidden_dtype(matrices))
    if is_tall:
        result = result.mT
    result = result / result.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(_NUM_ITERATIONS):
        gram = result @ result.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        result = torch.baddbmm(result, polynomial, result, beta=a)
    return result.mT if is_tall else result


def published_matrices(name: str, matrix: Tensor) -> tuple[Tensor, ...]:
    """The published BERT's matrices in `matrix`: queries, keys and values have one each there."""
    return matrix.chunk(3) if name.endswith("attention.to_qkv.weight") else (matrix,)


OPTIMIZERS: dict[str, type[Optimizer]] = {kind.name: kind for kind in (AdamW, LAMB, Muon)}


def build_optimizer(model: nn.Module, config: OptimizationConfig) -> Optimizer:
    """What `config.optimizer` names; raises ValueError as its class does."""
    return OPTIMIZERS[config.optimizer](model, config)
