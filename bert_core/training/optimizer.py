"""What every optimizer does: it holds the arena, updates it by groups, keeps its state.

A rule (`AdamW`, `LAMB`, `Muon`) defines for each kind of parameter which moments it keeps and how
they update it. Skipping and saving are the same for all rules.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bert_core.config import check_choice, check_number, check_whole
from bert_core.files import check_names
from bert_core.training.arena import GradientExchange, ParameterArena
from bert_core.training.guard import Guard, GuardConfig

OptimizerName = Literal["adamw", "lamb", "muon"]
Schedule = Literal["linear", "cosine", "constant", "warmup_stable_decay"]
_RANGES = {
    "learning_rate": "be positive and finite", "eps": "be positive and finite",
    "embeddings_rate": "be positive and finite", "max_grad_norm": "be positive and finite",
    "weight_decay": "be finite and not negative",
    "layer_decay": "lie in (0, 1]", "decay_fraction": "lie in (0, 1]",
    "muon_momentum": "lie in [0, 1)",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig:
    """How the weights follow the gradients, over `num_steps` steps.

    Args:
        optimizer: which one `build_optimizer` builds.
        learning_rate: the peak, reached after `warmup_steps`; `schedule` is how it falls then.
        decay_fraction: the last share of all steps, over which "warmup_stable_decay" falls to zero;
            never more steps than the warm-up leaves.
        weight_decay: decoupled, on matrices; biases and normalization never decay.
        betas, eps: of the running moments of AdamW and LAMB.
        max_grad_norm: gradients are scaled down to this norm over all parameters; None: never.
        layer_decay: the rate of each layer divided by that of the layer above; the heads have the
            full rate, the embeddings the lowest.
        embeddings_rate: a factor of the rate of the embeddings.
        muon_momentum: of Muon's running mean of gradients.
        exchange_dtype: in which gradients are sent between ranks; one rank alone rounds none.
        guard: which steps are skipped, and how many in a row stop training.

    Raises ValueError if a value is impossible.
    """

    optimizer: OptimizerName = "adamw"
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
    embeddings_rate: float = 1.0
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
        for name, range_of in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name != "max_grad_norm":
                check_number(name, value, range_of)
        for beta in self.betas:
            check_number("betas", beta, "lie in [0, 1)")
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("exchange_dtype", self.exchange_dtype, ("float32", "bf16"))

    def learning_rate_at(self, step: int) -> float:
        """The rate of optimizer step `step`, counted from 0: a linear warm-up, then the decay.

        It reaches its peak with the warm-up's last step, and would be zero at step `num_steps`.
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


_LAYER = re.compile(r"(?:^|\.)encoder\.layers\.(\d+)\.")
_IN_ENCODER = re.compile(r"(?:^|\.)encoder\.")

# Matrices inside the encoder's layers, where an optimizer tells them apart; other matrices and
# tables; biases and normalization.
Kind = Literal["hidden", "matrix", "vector"]
_ORDER = ("hidden", "matrix", "vector")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGroup:
    """Trainable parameters that are updated in one call; they lie next to each other."""

    kind: Kind
    names: tuple[str, ...]
    rate_scale: float  # times the learning rate of the step
    weight_decay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """What a group is updated by: its part of the arena's buffers, and its moments."""

    group: ParameterGroup
    begin: int  # in the arena
    values: Tensor
    gradients: Tensor
    moments: dict[str, Tensor]
    num_updates: Tensor  # [] float32, on the device, where skipped updates are known


def parameter_groups(
    model: nn.Module, config: OptimizationConfig, kind_of: Callable[[str, Tensor], Kind]
) -> list[ParameterGroup]:
    """The trainable parameters of `model` by kind and rate, matrices first."""
    layers = {name: layer_of(name) for name, _ in model.named_parameters()}
    num_layers = 1 + max((layer or 0 for layer in layers.values()), default=0)
    members: dict[tuple[Kind, float], list[str]] = {}
    for name, parameter in model.named_parameters():
        # The heads are above all layers, what else the encoder has is below.
        outside = num_layers + 1 if _IN_ENCODER.search(name) else 0
        levels_down = outside if (layer := layers[name]) is None else num_layers - layer
        own = config.embeddings_rate if "embeddings." in name else 1.0
        scale = own * config.layer_decay**levels_down
        if parameter.requires_grad:
            members.setdefault((kind_of(name, parameter), scale), []).append(name)
    return [
        ParameterGroup(
            kind=kind,
            names=tuple(members[kind, scale]),
            rate_scale=scale,
            weight_decay=0.0 if kind == "vector" else config.weight_decay,
        )
        for kind, scale in sorted(members, key=lambda key: _ORDER.index(key[0]))
    ]


def layer_of(name: str) -> int | None:
    """The encoder layer that the parameter `name` belongs to, from 0; None outside of them."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


class Optimizer(ABC):
    """An update rule over a model's parameters in one buffer; biases and norms never decay.

    Build it once the model is on its device and frozen where it is to be: it moves the trainable
    parameters into a `ParameterArena`. Raises ValueError if that cannot take them, and if the
    config does not fit the model.
    """

    name: ClassVar[OptimizerName]

    def __init__(self, model: nn.Module, config: OptimizationConfig) -> None:
        self.config = config
        self._groups = parameter_groups(model, config, self._kind)
        self.arena = ParameterArena(model, [n for group in self._groups for n in group.names])
        self._segments = list(self._new_segments())
        device = self.arena.values.device
        self._num_updates = torch.zeros((), dtype=torch.int64, device=device)
        self._is_skipped = torch.zeros((), device=device)  # whether the update is left out
        self.guard = Guard(config.guard, config.max_grad_norm, device)
        names = [name for name, _ in model.named_parameters()]
        self.exchange = GradientExchange(self.arena, names, config.exchange_dtype)

    def _new_segments(self) -> Iterator[Segment]:
        spans = self.arena.spans()
        for group in self._groups:
            begin, end = spans[group.names[0]][0], spans[group.names[-1]][1]
            values = self.arena.values[begin:end]
            yield Segment(
                group=group,
                begin=begin,
                values=values,
                gradients=self.arena.gradients[begin:end],
                moments={key: torch.zeros_like(values) for key in self._moments(group.kind)},
                num_updates=torch.zeros((), device=values.device),
            )

    @classmethod
    def _kind(cls, name: str, parameter: Tensor) -> Kind:
        """Which rule a parameter follows."""
        return "matrix" if parameter.ndim > 1 else "vector"

    @classmethod
    def _moments(cls, kind: Kind) -> tuple[str, ...]:
        """The names of a parameter's running moments: Adam's two, unless a rule has others."""
        return ("mean", "variance")

    @abstractmethod
    def _update(self, segment: Segment, learning_rate: float, divisor: Tensor | None) -> None:
        """Move a segment; where `_is_skipped` is 1 nothing of it may change but its gradients."""

    def _finite_gradients(self, segment: Segment, divisor: Tensor | None) -> Tensor:
        """The gradients divided, in place; zeros in a step that is left out: NaN times 0 is NaN."""
        if divisor is not None:
            segment.gradients.div_(divisor)
        return segment.gradients.masked_fill_(self._is_skipped.bool(), 0.0)

    @torch.no_grad()
    def update(
        self, learning_rate: float, *, divisor: Tensor | None = None, skip: Tensor | None = None
    ) -> Tensor:
        """Take one step down the gradients in the arena, divided by `divisor`, unless `skip`.

        Returns a flag on the device whether it did. The gradients are used up.
        """
        self._is_skipped.zero_()
        if skip is not None:
            self._is_skipped.copy_(skip)
        for segment in self._segments:
            self._update(segment, learning_rate * segment.group.rate_scale, divisor)
        self._num_updates += self._is_skipped == 0
        return self._is_skipped == 0

    @property
    def num_moments(self) -> int:
        """How many float32 numbers its running moments are."""
        return sum(each.numel() for part in self._segments for each in part.moments.values())

    @property
    def num_updates(self) -> int:
        """How many updates were made; waits for the device."""
        return int(self._num_updates)

    def _views(self) -> dict[str, dict[str, Tensor]]:
        """The moments, by parameter name."""
        views: dict[str, dict[str, Tensor]] = {}
        for segment in self._segments:
            for key, moment in segment.moments.items():
                views.setdefault(key, {}).update(self.arena.views(moment, segment.begin))
        return views

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` continues from; raises SkippedStepsError after a halt."""
        if self.guard.is_halted:
            raise self.guard.error()
        return {
            "optimizer": self.name,
            "num_updates": self.num_updates,
            "guard": {name: tensor.cpu() for name, tensor in self.guard.tensors().items()},
            **self._views(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; raises ValueError for another optimizer's."""
        kept = self._views()
        if state["optimizer"] != self.name:
            raise ValueError(
                f"the state must be that of {self.name}, found that of {state['optimizer']}; go on "
                "with the optimizer of the run that saved it"
            )
        remedy = "; freeze exactly what the run that saved it had frozen"
        for key, views in kept.items():
            check_names(state[key], views, f"the optimizer's {key}", remedy)
        for key, views in kept.items():
            for name, view in views.items():
                view.copy_(state[key][name])
        for segment in self._segments:
            segment.num_updates.fill_(state["num_updates"])
        self._num_updates.fill_(state["num_updates"])
        self.guard.load(state["guard"])
