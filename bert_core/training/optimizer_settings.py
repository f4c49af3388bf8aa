"""Settings of an optimizer: its rule, its rates over the steps, and what crosses ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

from bert_core.config import check_choice, check_number, check_whole
from bert_core.training.guard import GuardConfig

OptimizerName = Literal["adamw", "lamb", "muon"]
Schedule = Literal["linear", "cosine", "constant", "warmup_stable_decay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig:
    """How the weights follow the gradients, over `num_steps` steps.

    Args:
        optimizer: which one `build_optimizer` builds; None: AdamW, or the class it is given to.
        learning_rate: the peak, reached after `warmup_steps`; `schedule` is how it falls then.
        decay_fraction: the last share of all steps, over which "warmup_stable_decay" falls to zero;
            never more steps than the warm-up leaves.
        weight_decay: decoupled, on matrices; biases and normalization never decay.
        betas, eps: of the running moments of AdamW and LAMB.
        max_grad_norm: gradients are scaled down to this norm over all parameters; None: never.
        layer_decay: the rate of each layer divided by that of the layer above; the heads have the
            full rate, the embeddings the lowest.
        rate_scales: factors of the rate for parameters whose names match a pattern such as
            "encoder.layers.*"; the first matching pattern counts.
        averaging_decay: of the running average of the weights; None: no average is kept.
        muon_momentum: of Muon's running mean of gradients.
        exchange_dtype: in which gradients are sent between ranks; one rank alone rounds none.
        guard: which steps are skipped, and how many in a row stop training.

    Raises ValueError if a value is impossible.
    """

    optimizer: OptimizerName | None = None
    learning_rate: float = 1e-4
    warmup_steps: int = 0
    num_steps: int
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    max_grad_norm: float | None = 1.0
    schedule: Schedule = "linear"
    decay_fraction: float = 0.2
    layer_decay: float = 1.0
    rate_scales: Mapping[str, float] = field(default_factory=dict)
    averaging_decay: float | None = None
    muon_momentum: float = 0.95
    exchange_dtype: Literal["float32", "bf16"] = "float32"
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        check_whole("num_steps", self.num_steps, 1)
        check_whole("warmup_steps", self.warmup_steps, 0)
        if self.warmup_steps > self.num_steps:
            raise ValueError(
                f"warmup_steps must lie in [0, {self.num_steps}], got {self.warmup_steps}"
            )
        for name in ("learning_rate", "eps"):
            check_number(name, getattr(self, name), "be positive and finite")
        check_number("weight_decay", self.weight_decay, "be finite and not negative")
        for name in ("layer_decay", "decay_fraction"):
            check_number(name, getattr(self, name), "lie in (0, 1]")
        check_number("muon_momentum", self.muon_momentum, "lie in [0, 1)")
        if self.averaging_decay is not None:
            check_number("averaging_decay", self.averaging_decay, "lie in [0, 1)")
        norm = self.max_grad_norm
        if norm is not None and not (isinstance(norm, Real) and norm > 0):
            raise ValueError(f"max_grad_norm must be positive or None, got {norm!r}")
        is_pair = isinstance(self.betas, Sequence) and len(self.betas) == 2
        if not (is_pair and all(isinstance(beta, Real) and 0 <= beta < 1 for beta in self.betas)):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        for pattern, scale in self.rate_scales.items():
            if not (isinstance(scale, Real) and 0 < scale < math.inf):
                raise ValueError(
                    f"rate_scales must be positive and finite, got {scale!r} for {pattern!r}; to "
                    "leave parameters as they are, freeze them before the optimizer is built"
                )
        if self.optimizer is not None:
            check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("exchange_dtype", self.exchange_dtype, ("float32", "bf16"))

    def learning_rate_at(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0: a linear warm-up, then the decay.

        The first step moves already; the rate reaches its peak with the last step of the warm-up
        and would reach zero at step `num_steps`, which is not taken.
        """
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return self.learning_rate
        steps = max(1, self.num_steps - self.warmup_steps)  # over which it falls
        if self.schedule == "warmup_stable_decay":
            steps = min(steps, max(1, round(self.num_steps * self.decay_fraction)))
        left = min(1.0, max(0.0, (self.num_steps - step) / steps))
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 - math.cos(math.pi * left))
        return self.learning_rate * left
