"""AdamW and the learning rate's way up and down.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from bert_core.training.arena import ParameterArena


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig:
    """How the weights follow the gradients, over `num_steps` steps.

    Raises ValueError where a value is impossible.
    """

    learning_rate: float = 1e-4
    warmup_steps: int = 0
    num_steps: int
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    max_grad_norm: float | None = 1.0
    schedule: Literal["linear", "cosine", "constant"] = "linear"

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {self.num_steps}")
        if not 0 <= self.warmup_steps <= self.num_steps:
            raise ValueError(
                f"warmup_steps must lie in [0, {self.num_steps}], got {self.warmup_steps}"
            )
        for name in ("learning_rate", "eps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not all(0 <= beta < 1 for beta in self.betas) or len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive or None, got {self.max_grad_norm}")
        if self.schedule not in ("linear", "cosine", "constant"):
            raise ValueError(f"schedule must be linear, cosine or constant, got {self.schedule!r}")

    def learning_rate_at(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0: a linear warm-up, then the decay.

        The first step moves already; the rate reaches its peak with the last step of the warm-up
        and would reach zero at step `num_steps`, which is not taken.
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        left = (self.num_steps - step) / max(1, self.num_steps - self.warmup_steps)
        left = min(1.0, max(0.0, left))
        if self.schedule == "linear":
            return self.learning_rate * left
        return self.learning_rate * 0.5 * (1 - math.cos(math.pi * left))


class NonFiniteGradientError(FloatingPointError):
    """The loss or its gradient stopped being a number; the weights are those before that step."""

    def __init__(self, step: int) -> None:
        super().__init__(
            f"the gradient of step {step} is not finite, so the step was not taken; "
            "lower the learning rate, lengthen the warm-up or train in float32"
        )
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.step,)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A part of the buffers that is updated in one call."""

    values: Tensor
    gradients: Tensor
    mean: Tensor
    variance: Tensor
    weight_decay: float
    num_updates: Tensor  # [] float32, on the device, where skipped updates are known


class AdamW:
    """AdamW over a model's parameters in one buffer; biases and normalization do not decay.

    Build it once the model is on its device and frozen where it is to be: it moves the trainable
    parameters into a `ParameterArena`, and raises ValueError where that cannot take them.
    """

    def __init__(self, model: nn.Module, config: OptimizationConfig) -> None:
        self.config = config
        self.arena = ParameterArena(model)
        self._mean = torch.zeros_like(self.arena.values)
        self._variance = torch.zeros_like(self.arena.values)
        device = self.arena.values.device
        buffers = self.arena.values, self.arena.gradients, self._mean, self._variance
        parts = zip(*(self.arena.split(buffer) for buffer in buffers), strict=True)
        self._groups = [
            _Group(
                values=values,
                gradients=gradients,
                mean=mean,
                variance=variance,
                weight_decay=weight_decay,
                num_updates=torch.zeros((), device=device),
            )
            for (values, gradients, mean, variance), weight_decay in zip(
                parts, (config.weight_decay, 0.0), strict=True
            )
            if values.numel()
        ]
        self._is_halted = torch.zeros((), device=device)

    @torch.no_grad()
    def update(
        self, learning_rate: float, *, divisor: Tensor | None = None, halt: Tensor | None = None
    ) -> Tensor:
        """Take one step down the gradients in the arena, divided by `divisor`; returns if it did.

        Where `halt` is true nothing changes, now and in later updates, until a state is loaded: a
        GPU decides this without the host waiting for it. `raise_if_halted` asks.
        """
        if halt is not None:
            self._is_halted = torch.maximum(self._is_halted, halt.float())
        for group in self._groups:
            adamw(
                [group.values], [group.gradients], [group.mean], [group.variance], [],
                [group.num_updates],
                fused=True, grad_scale=divisor, found_inf=self._is_halted,
                amsgrad=False, maximize=False,
                beta1=self.config.betas[0], beta2=self.config.betas[1], eps=self.config.eps,
                lr=learning_rate, weight_decay=group.weight_decay,
            )  # fmt: skip
        return self._is_halted == 0

    @property
    def num_updates(self) -> int:
        """How many updates were made; waits for the device."""
        return int(self._groups[0].num_updates)

    def raise_if_halted(self) -> None:
        """Raise NonFiniteGradientError where updates stopped; waits for the device.

        On several ranks all of them raise or none, as all of them made the same updates.
        """
        if self._is_halted:
            raise NonFiniteGradientError(self.num_updates)

    def state_dict(self) -> dict[str, Any]:
        """The running moments by parameter name, and the number of updates.

        Raises NonFiniteGradientError where updates stopped: there is no state to go on from.
        """
        self.raise_if_halted()
        return {
            "mean": self.arena.views(self._mean),
            "variance": self.arena.views(self._variance),
            "num_updates": self.num_updates,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; raises ValueError for other parameters."""
        moments = (("mean", self._mean), ("variance", self._variance))
        for key, _ in moments:
            self.arena.check_names(state[key], f"the optimizer's {key}")
        for key, buffer in moments:
            for name, view in self.arena.views(buffer).items():
                view.copy_(state[key][name])
        for group in self._groups:
            group.num_updates.fill_(state["num_updates"])
        self._is_halted.zero_()
