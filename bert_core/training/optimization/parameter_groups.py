"""Which parameters follow their gradients by one rule, at one rate."""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from torch import Tensor, nn

from bert_core.training.depth import depths, head_depth, layer_of
from bert_core.training.optimization.configuration import OptimizationConfig

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
    """What this rank updates of a group: one part of the arena's buffers, and its moments."""

    group: ParameterGroup
    begin: int  # in the arena
    values: Tensor
    gradients: Tensor
    moments: dict[str, Tensor]
    num_updates: Tensor  # [] float32, on the device, where skipped updates are known


def parameter_groups(
    model: nn.Module, config: OptimizationConfig, kind_of: Callable[[str, Tensor], Kind]
) -> list[ParameterGroup]:
    """The trainable parameters of `model` by kind and rate, matrices first.

    Raises ValueError for a rate scale that fits no parameter, and for a `layer_decay` in a model
    without encoder layers.
    """
    names = [name for name, _ in model.named_parameters()]
    scales = _rate_scales(names, config)
    members: dict[tuple[Kind, float], list[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            members.setdefault((kind_of(name, parameter), scales[name]), []).append(name)
    return [
        ParameterGroup(
            kind=kind,
            names=tuple(members[kind, scale]),
            rate_scale=scale,
            weight_decay=0.0 if kind == "vector" else config.weight_decay,
        )
        for kind, scale in sorted(members, key=lambda key: _ORDER.index(key[0]))
    ]


def _rate_scales(names: list[str], config: OptimizationConfig) -> dict[str, float]:
    for pattern in config.rate_scales:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"rate_scales must name parameters of the model, found none that fits {pattern!r}; "
                "dict(model.named_parameters()) lists them"
            )
    depth_of = depths(names)
    head = head_depth(names)
    if config.layer_decay != 1 and all(layer_of(name) is None for name in names):
        raise ValueError(
            f"layer_decay must be 1.0 for a model without encoder layers, got {config.layer_decay}"
        )
    scales = {}
    for name in names:
        fitting = (s for pattern, s in config.rate_scales.items() if fnmatchcase(name, pattern))
        scales[name] = next(fitting, 1.0) * config.layer_decay ** (head - depth_of[name])
    return scales


# By name: importing them would bring what most training runs do not need.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "FSDPModule")


def check_unwrapped(model: nn.Module) -> None:
    """Raise ValueError if FSDP or DDP wraps `model`, or a parameter is a DTensor."""
    found = [name for module in model.modules() for name in _WRAPPERS if _is_a(module, name)]
    found += [f"{name} as a DTensor" for name, p in model.named_parameters() if _is_a(p, "DTensor")]
    if found:
        raise ValueError(
            f"an optimizer needs the model without a wrapper, got {found[0]}: the step adds "
            "gradients up over the ranks, divided by the counts of all of them, where a wrapper "
            "would average means, and holds all parameters in one buffer "
            "(shard_optimizer_state=True divides what is kept of them)"
        )


def _is_a(thing: object, name: str) -> bool:
    return any(
        kind.__name__ == name and kind.__module__.startswith("torch.")
        for kind in type(thing).__mro__
    )
