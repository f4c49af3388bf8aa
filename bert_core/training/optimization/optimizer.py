"""What every optimizer does: it holds the arena, updates it by groups, keeps its state.

A rule (`AdamW`, `LAMB`, `Muon`) defines for each kind of parameter which moments it keeps and how
they update it. Skipping, averaging, saving and sharding are the same for all rules.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bert_core.files.tensor_files import check_names
from bert_core.training.arena import ParameterArena
from bert_core.training.exchange import Exchange, Shares, exchange_for
from bert_core.training.guard import Guard
from bert_core.training.optimization.configuration import OptimizationConfig, OptimizerName
from bert_core.training.optimization.parameter_groups import (
    Kind,
    Segment,
    check_unwrapped,
    parameter_groups,
)
from bert_core.training.ranks import checksum


class Optimizer(ABC):
    """An update rule over a model's parameters in one buffer; biases and norms never decay.

    Build it once the model is on its device and frozen where it is to be: it moves the trainable
    parameters into a `ParameterArena`. Raises ValueError if that cannot take them, for a model
    that FSDP or DDP wraps, and if the config does not fit the model or names another optimizer.
    """

    name: ClassVar[OptimizerName]

    def __init__(self, model: nn.Module, config: OptimizationConfig) -> None:
        check_unwrapped(model)
        if config.optimizer not in (None, self.name):
            raise ValueError(
                f"the config names the optimizer {config.optimizer!r}, but {self.name} was built; "
                "leave optimizer out of the config, or call build_optimizer"
            )
        self.config = replace(config, optimizer=self.name)
        self._groups = parameter_groups(model, config, self._kind)
        self.arena = ParameterArena(model, [n for group in self._groups for n in group.names])
        self._shares = Shares(self.arena, is_sharded=config.shard_optimizer_state)
        self._segments = list(self._new_segments())
        device = self.arena.values.device
        self._num_updates = torch.zeros((), dtype=torch.int64, device=device)
        self._is_skipped = torch.zeros((), device=device)  # whether the update is left out
        self.guard = Guard(config.guard, config.max_grad_norm, device)
        # A checksum: with a sharded state no rank sees what the others loaded.
        self._loaded = torch.zeros(2, dtype=torch.int64, device=device)
        self._average: Tensor | None = None
        if config.averaging_decay is not None:
            self._average = torch.zeros_like(self._own_values())

    def _new_segments(self) -> Iterator[Segment]:
        spans = self.arena.spans()
        for group in self._groups:
            begin = max(self._shares.begin, spans[group.names[0]][0])
            end = min(self._shares.end, spans[group.names[-1]][1])
            if begin < end:
                values = self.arena.values[begin:end]
                yield Segment(
                    group=group,
                    begin=begin,
                    values=values,
                    gradients=self.arena.gradients[begin:end],
                    moments={key: torch.zeros_like(values) for key in self._moments(group.kind)},
                    num_updates=torch.zeros((), device=values.device),
                )

    @cached_property
    def exchange(self) -> Exchange:
        """Sums the gradients over the ranks; the first access is collective."""
        return exchange_for(self.arena, self.config.exchange_dtype, self.config.bucket_megabytes)

    @classmethod
    def _kind(cls, name: str, parameter: Tensor) -> Kind:
        """Which rule a parameter follows."""
        return "matrix" if parameter.ndim > 1 else "vector"

    @classmethod
    def _moments(cls, kind: Kind) -> tuple[str, ...]:
        """The names of the running moments of a parameter: Adam's two, unless a rule has others."""
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
        """Take one step down the gradients in the arena, divided by `divisor`; returns if it did.

        Where `skip`, a flag on the device, is true, nothing changes. The gradients are used up.
        With a sharded state all ranks call it.
        """
        self._is_skipped.zero_()
        if skip is not None:
            self._is_skipped.copy_(skip)
        for segment in self._segments:
            self._update(segment, learning_rate * segment.group.rate_scale, divisor)
        self._num_updates += self._is_skipped == 0
        if self._average is not None:
            # The plain mean of the first weights, an exponential one once they are enough.
            assert self.config.averaging_decay is not None
            share = self._num_updates.clamp(min=1).float().reciprocal()
            share = share.clamp(min=1 - self.config.averaging_decay)
            self._average.lerp_(self._own_values(), share * (1 - self._is_skipped))
        self._shares.exchange(self.arena.values)
        return self._is_skipped == 0

    def _own_values(self) -> Tensor:
        return self.arena.values[self._shares.begin : self._shares.end]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the model has the average of its weights, or its own if none is kept.

        For evaluating and saving; a step must not be taken inside. Waits for the device. With a
        sharded state all ranks call it.
        """
        if self._average is None or not self.num_updates:
            yield
            return
        own = self.arena.values.clone()
        self._own_values().copy_(self._average)
        self._shares.exchange(self.arena.values)
        try:
            yield
        finally:
            self.arena.values.copy_(own)

    @property
    def num_updates(self) -> int:
        """How many updates were made; waits for the device."""
        return int(self._num_updates)

    def replicated_state(self) -> list[Tensor]:
        """The tensors besides the weights that must be equal on every rank.

        All, unless the state is sharded: then a checksum replaces the moments that were loaded.
        """
        counts = [self._num_updates, *self.guard.tensors().values()]
        if self._shares.is_sharded:
            return [*counts, self._loaded]
        return [*counts, *self._kept()]

    def _kept(self) -> list[Tensor]:
        """The moments and the average that this rank holds."""
        moments = [moment for segment in self._segments for moment in segment.moments.values()]
        return moments if self._average is None else [*moments, self._average]

    def _keys(self) -> dict[str, list[str]]:
        """What a saved state holds by name, and of which parameters."""
        keys: dict[str, list[str]] = {}
        for group in self._groups:
            for key in self._moments(group.kind):
                keys.setdefault(key, []).extend(group.names)
        return keys if self._average is None else {**keys, "average": list(self.arena.parameters)}

    def _own_views(self, key: str) -> dict[str, Tensor]:
        """What this rank holds of `key`, by parameter."""
        if key == "average":
            assert self._average is not None
            return self.arena.views(self._average, self._shares.begin)
        views: dict[str, Tensor] = {}
        for segment in self._segments:
            if key in segment.moments:
                views |= self.arena.views(segment.moments[key], segment.begin)
        return views

    @torch.no_grad()
    def state_dict(self, *, is_wanted: bool = True) -> dict[str, Any]:
        """The moments, and the average, by parameter name, whole; and the number of updates.

        A sharded state is gathered on the CPU, share by share, and all ranks call it; one where it
        is not wanted keeps no tensor of it. Raises SkippedStepsError if the guard has halted
        training: there is no state to continue from.
        """
        self.guard.raise_if_halted()
        state: dict[str, Any] = {"optimizer": self.name, "num_updates": self.num_updates}
        if is_wanted:
            state["guard"] = {name: tensor.cpu() for name, tensor in self.guard.tensors().items()}
        for key, names in self._keys().items():
            whole = self._shares.gathered(self.arena, self._own_views(key), is_wanted=is_wanted)
            state[key] = {name: whole[name] for name in names if name in whole}
        return state

    @torch.no_grad()
    def reset(self) -> None:
        """Forget all updates; the weights stay."""
        counts = [self._num_updates, self._loaded, *(s.num_updates for s in self._segments)]
        for tensor in (*counts, *self._kept()):
            tensor.zero_()
        self.guard.load(None)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, on any number of ranks.

        Raises ValueError for the state of another optimizer or of other parameters.
        """
        keys = self._keys()
        ours = _described(self.name, "average" in keys)
        theirs = _described(state.get("optimizer", "adamw"), "average" in state)
        if ours != theirs:
            raise ValueError(
                f"the state must be that of {ours}, found that of {theirs}; go on with the "
                "optimizer and the averaging of the run that saved it"
            )
        for key, names in keys.items():
            remedy = "; freeze exactly what the run that saved it had frozen"
            check_names(state[key], names, f"the optimizer's {key}", remedy)
        if self._shares.is_sharded:
            device = self.arena.values.device
            whole = (state[key][name].to(device) for key, names in keys.items() for name in names)
            self._loaded = checksum(whole, device)
        for key in keys:
            for name, view in self._own_views(key).items():
                view.copy_(state[key][name])
        for segment in self._segments:
            segment.num_updates.fill_(state["num_updates"])
        self._num_updates.fill_(state["num_updates"])
        self.guard.load(state.get("guard"))


def _described(name: str, is_averaged: bool) -> str:
    return f"{name} {'with' if is_averaged else 'without'} an average of the weights"
