"""AdamW.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
"""

from typing import ClassVar

from torch import Tensor
from torch.optim.adamw import adamw

from bert_core.training.optimization.configuration import OptimizerName
from bert_core.training.optimization.optimizer import Optimizer
from bert_core.training.optimization.parameter_groups import Kind, Segment


class AdamW(Optimizer):
    """AdamW with decoupled weight decay, one fused call for each group of parameters."""

    name: ClassVar[OptimizerName] = "adamw"

    @classmethod
    def _moments(cls, kind: Kind) -> tuple[str, ...]:
        return ("mean", "variance")

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
