"""All trainable parameters in one buffer, and their gradients in another, summed over the ranks.

One buffer makes the optimizer's update, the gradient norm and the copy in a lower precision one
call each. Ranks exchange it in buckets while the backward pass runs: a bucket is sent once every
parameter in it has its whole gradient, whether autograd or the layer itself accumulated it: in both
cases autograd calls a hook once in a backward pass, however often a parameter was used.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bert_core.backends.context import ComputeWeight, computing
from bert_core.backends.operations import backend_for
from bert_core.files import listed

_ALIGNMENT = 64  # elements; every parameter starts on a cache line in every number format


class ParameterArena:
    """Moves the trainable parameters of `model` into one buffer, matrices first.

    The parameters become views of `values`, with views of `gradients` as their gradients. Frozen
    ones (`requires_grad=False`) stay where they are and have no gradients. Matrices, and vectors,
    are in the order of `order`, which lists all trainable names. Raises ValueError if nothing is
    trainable, or a parameter is not float32 on the device of the others.
    """

    def __init__(self, model: nn.Module, order: Sequence[str]) -> None:
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        named = [(name, trainable[name]) for name in order]
        # Biases and normalization are all the parameters with one dimension. They are never copied
        # to a lower precision, so what is copied is one part of the buffer.
        named.sort(key=lambda item: item[1].ndim < 2)
        device = named[0][1].device
        self.parameters = dict(named)  # by name, in the order of the buffer
        self._model = model
        self._offsets: dict[str, int] = {}
        size = 0
        for name, parameter in named:
            if parameter.dtype != torch.float32 or parameter.device != device:
                raise ValueError(
                    f"every parameter must be float32 on {device}, got {name} as "
                    f"{parameter.dtype} on {parameter.device}"
                )
            self._offsets[name] = size
            size += padded(parameter.numel())
        vectors = (self._offsets[name] for name, p in named if p.ndim < 2)
        self._matrices_end = next(vectors, size)
        self.values = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self._copies: dict[torch.dtype, Tensor] = {}
        self._compute_weights: dict[torch.dtype, dict[Tensor, ComputeWeight]] = {}
        values, gradients = self.views(self.values), self.views(self.gradients)
        with torch.no_grad():
            for name, parameter in named:
                values[name].copy_(parameter)
                parameter.data = values[name]
                parameter.grad = gradients[name]
        self._addresses = _addresses(model)

    def views(self, buffer: Tensor, begin: int = 0) -> dict[str, Tensor]:
        """A buffer of this layout, or a part that starts at `begin`, in the parameters' shapes."""
        views = {}
        for name, parameter in self.parameters.items():
            first = self._offsets[name] - begin
            if first >= 0 and first + parameter.numel() <= buffer.numel():
                views[name] = buffer[first : first + parameter.numel()].view(parameter.shape)
        return views

    def spans(self) -> dict[str, tuple[int, int]]:
        """Where in the buffers each parameter begins and the next one does."""
        return {
            name: (offset, offset + padded(self.parameters[name].numel()))
            for name, offset in self._offsets.items()
        }

    def computing(self, dtype: torch.dtype) -> AbstractContextManager[None]:
        """A block in which the model computes in `dtype` and adds gradients up here."""
        if not backend_for(self.values.device).takes_compute_weights:
            return computing(dtype)  # it casts a matrix where it is used, and autograd adds up
        if dtype not in self._compute_weights:
            self._compute_weights[dtype] = self._new_compute_weights(dtype)
        if dtype in self._copies:
            self._copies[dtype].copy_(self.values[: self._matrices_end])
        return computing(dtype, dict(self._compute_weights[dtype]))

    def _new_compute_weights(self, dtype: torch.dtype) -> dict[Tensor, ComputeWeight]:
        values, gradients = self.views(self.values), self.views(self.gradients)
        if dtype != torch.float32:
            matrices = self.values[: self._matrices_end]
            self._copies[dtype] = torch.empty_like(matrices, dtype=dtype)
            values |= self.views(self._copies[dtype])
        return {
            parameter: ComputeWeight(values[name], gradients[name])
            for name, parameter in self.parameters.items()
        }

    def check_unchanged(self) -> None:
        """Raise ValueError if the model no longer learns from this arena, naming the parameters.

        One was frozen, or it or its gradient was moved, as `.to()` and `zero_grad()` do.
        """
        now = _addresses(self._model)
        if now != self._addresses:
            changed = [name for name in now if now[name] != self._addresses.get(name)]
            raise ValueError(
                "an optimizer must find the parameters and gradients of its model where it put "
                f"them, and frozen what was frozen, found others at {listed(changed)}; freeze, "
                "move, convert or load the model first, then build its optimizer"
            )


def _addresses(model: nn.Module) -> dict[str, tuple[int, int] | None]:
    """Where in memory each parameter and its gradient begin; None if it is frozen."""
    return {
        name: (p.data_ptr(), 0 if p.grad is None else p.grad.data_ptr())
        if p.requires_grad
        else None
        for name, p in model.named_parameters()
    }


def padded(num_elements: int) -> int:
    """How many elements of the buffer a parameter of so many takes."""
    return -(-num_elements // _ALIGNMENT) * _ALIGNMENT


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
    Every rank sends the same buckets in the same order: a bucket waits for those before it, and a
    rank without a micro-batch sends all of them in `finish`.
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
        """Send what becomes complete in a backward pass in this block: the step's last one."""
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
        """Send what is left and wait for all of it. All ranks call it."""
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

    That is about the reverse of the model's order, `names`. A bucket ends where the arena turns
    back in it, so that the heads do not wait for the embeddings.
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
