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
    """How the weights follow the gradients, over `num_steps` steps."""

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


class AdamW:
    """AdamW over a model's parameters in one buffer; biases and normalization do not decay.

    Build it once the model is on its device: it moves the parameters into a `ParameterArena`.
    """

    def __init__(self, model: nn.Module, config: OptimizationConfig) -> None:
        self.config = config
        self.arena = ParameterArena(model)
        self._mean = torch.zeros_like(self.arena.values)
        self._variance = torch.zeros_like(self.arena.values)
        device = self.arena.values.device
        # One count for each of the two groups, on the device, where skipped updates are known.
        self._num_updates = [torch.zeros((), device=device) for _ in range(2)]
        self._is_halted = torch.zeros((), device=device)

    @torch.no_grad()
    def update(
        self, learning_rate: float, *, divisor: Tensor | None = None, halt: Tensor | None = None
    ) -> None:
        """Take one step down the gradients in the arena, divided by `divisor`.

        Where `halt` is true nothing changes, now and in later updates: a GPU decides this without
        the host waiting for it, which learns of it a step later.
        """
        if halt is not None:
            self._is_halted = torch.maximum(self._is_halted, halt.float())
        arena, config = self.arena, self.config
        groups = zip(
            arena.split(arena.values),
            arena.split(arena.gradients),
            arena.split(self._mean),
            arena.split(self._variance),
            self._num_updates,
            (config.weight_decay, 0.0),
            strict=True,
        )
        for values, gradients, mean, variance, num_updates, weight_decay in groups:
            if not values.numel():
                continue
            adamw(
                [values], [gradients], [mean], [variance], [], [num_updates],
                fused=True, grad_scale=divisor, found_inf=self._is_halted,
                amsgrad=False, maximize=False,
                beta1=config.betas[0], beta2=config.betas[1], eps=config.eps,
                lr=learning_rate, weight_decay=weight_decay,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """The running moments by parameter name, and the number of updates."""
        return {
            "mean": self.arena.views(self._mean),
            "variance": self.arena.views(self._variance),
            "num_updates": int(self._num_updates[0]),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        for key, buffer in (("mean", self._mean), ("variance", self._variance)):
            self.arena.check_names(state[key], f"the optimizer's {key}")
            for name, view in self.arena.views(buffer).items():
                view.copy_(state[key][name])
        for num_updates in self._num_updates:
            num_updates.fill_(state["num_updates"])
