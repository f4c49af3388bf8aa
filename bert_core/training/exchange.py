"""Gradients on their way between ranks, while the backward pass is still under way.

A bucket is a part of the arena. It is sent once no gradient in it will change any more: when
backward has reached the hidden states that enter encoder layer i, the gradients of the layers from
i on and of the heads are complete, whether autograd added them up or the layer itself did. A model
may read more than one text in a forward pass: then backward must have reached the hidden states of
all of them. What belongs to the embeddings, the tied table with it, is complete at the end.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_core.model.trainable import TrainableModel
from bert_core.training.arena import ParameterArena
from bert_core.training.depth import depths
from bert_core.training.neighbours import Neighbour, meet
from bert_core.training.ranks import num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Elements `begin` to `end` - 1 of the arena, complete once backward has passed `depth`."""

    begin: int
    end: int
    depth: int


class GradientExchange:
    """Adds the gradients of one step up over the ranks, in place.

    Every rank sends the same buckets in the same order, whatever it has computed: the order is
    that of the depths, and a rank without a micro-batch sends all of them in `finish`.
    """

    def __init__(
        self,
        model: TrainableModel,
        arena: ParameterArena,
        dtype: Literal["float32", "bf16"] = "float32",
        bucket_megabytes: float = 25.0,
    ) -> None:
        self._layers = model.encoder.layers
        self._gradients = arena.gradients
        self._dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        self._waiting: list[Bucket] = []
        if num_ranks() > 1:
            self._waiting = list(bucket_plan(model, arena, bucket_megabytes))
        self._sent: list[tuple[Any, Bucket, Tensor]] = []
        self._awaited: Counter[int] = Counter()  # hidden states without a gradient yet, by depth

    @contextmanager
    def while_backward(self) -> Iterator[None]:
        """Send what becomes complete in the backward pass of a forward pass made in this block.

        To be used for the last micro-batch alone: the gradients of all of them travel together.
        """
        hooks = []
        if self._waiting:
            hooks = [
                layer.register_forward_pre_hook(self._watch(depth=index + 1))
                for index, layer in enumerate(self._layers)
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, depth: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def before_forward(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            if torch.compiler.is_compiling():
                return  # one graph has one end; `finish` sends
            hidden = arguments[0]
            # A leaf is what activation checkpointing detached: its gradient is there before
            # those of the layer's parameters need be. The one it was detached from tells in time.
            if hidden.requires_grad and not hidden.is_leaf:
                # A layer that is computed again awaits the same hidden state a second time, before
                # its gradient is there.
                self._awaited[depth] += 1
                hidden.register_hook(lambda gradient: self._arrived(depth))

        return before_forward

    def _arrived(self, depth: int) -> None:
        """Send what is complete if no other pass through the encoder is still that deep."""
        self._awaited[depth] -= 1
        if not any(count for other, count in self._awaited.items() if other >= depth):
            self._send_from(depth)

    def _send_from(self, depth: int) -> None:
        """Send the buckets of `depth` and more that were not sent."""
        while self._waiting and self._waiting[0].depth >= depth:
            bucket = self._waiting.pop(0)
            gradients = self._gradients[bucket.begin : bucket.end]
            sent = gradients.to(self._dtype)  # the gradients themselves where they are float32
            self._sent.append((dist.all_reduce(sent, async_op=True), bucket, sent))

    def finish(self) -> None:
        """Send what is left and wait for all of it; a GPU's host does not wait. All ranks call it.

        To be called where gradients are not recorded.
        """
        self._send_from(0)
        for work, bucket, sent in self._sent:
            work.wait()
            if self._dtype != torch.float32:
                self._gradients[bucket.begin : bucket.end].copy_(sent)
        self._sent.clear()
        self._awaited.clear()


_plans: WeakKeyDictionary[ParameterArena, dict[float, tuple[Bucket, ...]]] = WeakKeyDictionary()


def bucket_plan(
    model: TrainableModel, arena: ParameterArena, bucket_megabytes: float
) -> tuple[Bucket, ...]:
    """The buckets of the arena of `model`, cut once: names and places in it never change."""
    plans = _plans.setdefault(arena, {})
    if bucket_megabytes not in plans:
        depth_of = depths([name for name, _ in model.named_parameters()])
        num_elements = round(bucket_megabytes * 1e6 / 4)
        plans[bucket_megabytes] = tuple(buckets(arena, depth_of, num_elements))
    return plans[bucket_megabytes]


_neighbours: WeakKeyDictionary[ParameterArena, Neighbour | None] = WeakKeyDictionary()


def neighbour_of(arena: ParameterArena) -> Neighbour | None:
    """Who else maps the gradients of `arena`; None where they travel. All ranks call it."""
    if arena not in _neighbours:
        _neighbours[arena] = meet(arena.shared) if arena.shared is not None else None
    return _neighbours[arena]


def buckets(arena: ParameterArena, depth_of: dict[str, int], num_elements: int) -> list[Bucket]:
    """The arena cut between parameters into about `num_elements` each, the deepest first.

    Nothing waits for what is complete much later: a bucket ends before and after embeddings, and
    where the arena turns from the heads to the lowest layers again.
    """
    found: list[Bucket] = []
    depth_before = 0
    for name, (begin, end) in arena.spans().items():
        depth = depth_of[name]
        last = found[-1] if found else None
        goes_on = depth >= depth_before and (depth == 0) == (depth_before == 0)
        if last and goes_on and end - last.begin <= num_elements:
            found[-1] = Bucket(begin=last.begin, end=end, depth=last.depth)
        else:
            found.append(Bucket(begin=begin, end=end, depth=depth))
        depth_before = depth
    return sorted(found, key=lambda bucket: -bucket.depth)
