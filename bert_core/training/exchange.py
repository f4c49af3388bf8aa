"""The ranks of a step, and the gradients that they send each other during the backward pass.

A bucket is a part of the arena. It is sent once every parameter in it has its whole gradient,
whether autograd or the layer itself accumulated it: in both cases autograd calls a hook once in a
backward pass, however often a parameter was used in the forward pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from bert_core.training.arena import ParameterArena


def num_ranks() -> int:
    """How many processes take each step together; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def this_rank() -> int:
    """The number of this process among them, from 0."""
    return dist.get_rank() if num_ranks() > 1 else 0


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum `values` over the ranks, in place. All of them call it."""
    if num_ranks() > 1:
        dist.all_reduce(values)
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Elements `begin` to `end` - 1 of the arena: these parameters."""

    begin: int
    end: int
    names: tuple[str, ...]


class GradientExchange:
    """Sums the gradients of one step over the ranks, in place.

    `names` are those of all parameters in the model's order, from the embeddings to the heads.
    Every rank sends the same buckets in the same order, whatever it has computed: a bucket waits
    for those before it, and a rank without a micro-batch sends all of them in `finish`.
    """

    def __init__(
        self,
        arena: ParameterArena,
        names: Sequence[str],
        dtype: Literal["float32", "bf16"] = "float32",
        bucket_megabytes: float = 25.0,
    ) -> None:
        self._arena = arena
        self._dtype = torch.bfloat16 if dtype == "bf16" else torch.float32
        self._buckets = buckets(arena, names, round(bucket_megabytes * 1e6 / 4))
        self._missing: list[int] = []  # of each bucket: parameters whose gradient is not complete
        self._sent: list[tuple[Any, Tensor]] = []  # the first buckets

    @contextmanager
    def while_backward(self) -> Iterator[None]:
        """Send what becomes complete in a backward pass in this block.

        For the last micro-batch only: the gradients of all of them are sent together.
        """
        self._missing = [len(bucket.names) for bucket in self._buckets]
        hooks = [
            self._arena.parameters[name].register_post_accumulate_grad_hook(self._watch(number))
            for number, bucket in enumerate(self._buckets if num_ranks() > 1 else ())
            for name in bucket.names
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, number: int) -> Callable[[Tensor], None]:
        def completed(parameter: Tensor) -> None:
            self._missing[number] -= 1
            # Two backward passes in one block would have sent the first one's gradient alone.
            assert self._missing[number] >= 0
            while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
                self._send_next()

        return completed

    def _send_next(self) -> None:
        bucket = self._buckets[len(self._sent)]
        # The gradients themselves where they are float32.
        sent = self._arena.gradients[bucket.begin : bucket.end].to(self._dtype)
        self._sent.append((dist.all_reduce(sent, async_op=True), sent))

    def finish(self) -> None:
        """Send what is left and wait for all of it; a GPU's host does not wait. All ranks call it.

        To be called where gradients are not recorded.
        """
        if num_ranks() == 1:
            return
        while len(self._sent) < len(self._buckets):
            self._send_next()
        for bucket, (work, sent) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            if self._dtype != torch.float32:
                self._arena.gradients[bucket.begin : bucket.end].copy_(sent)
        self._sent.clear()


def buckets(arena: ParameterArena, names: Sequence[str], num_elements: int) -> list[Bucket]:
    """The arena cut between parameters into about `num_elements` each, in the order of sending.

    The backward pass completes the parameters about in the reverse of the model's order, `names`.
    A bucket ends where the arena turns back in that order, so that the heads do not wait for the
    embeddings.
    """
    place = {name: number for number, name in enumerate(names)}
    cut_arena: list[Bucket] = []
    for name, (begin, end) in arena.spans().items():
        last = cut_arena[-1] if cut_arena else None
        goes_on = last is not None and place[name] > place[last.names[-1]]
        if last and goes_on and end - last.begin <= num_elements:
            cut_arena[-1] = Bucket(begin=last.begin, end=end, names=(*last.names, name))
        else:
            cut_arena.append(Bucket(begin=begin, end=end, names=(name,)))
    return sorted(cut_arena, key=lambda bucket: -place[bucket.names[0]])
