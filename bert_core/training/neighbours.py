"""Two ranks on one machine sum their gradients in shared memory.

Over the loopback every number is copied into the kernel and out of it on both sides, by threads
that compete with those that compute. Here a rank reads its neighbour's numbers directly.

Only two ranks, in float32, on CPUs: a sum of two does not depend on the order, so a run whose ranks
exchange gradients over a network has the same bits.
"""

import mmap
import os
import secrets
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from bert_core.training.ranks import num_ranks, sum_over_ranks, this_rank

_BYTES = 4  # of a number
_TOKEN_NUMBERS = 16  # behind the numbers, a cache line: says whose memory it is
_FIELDS = 5  # process, descriptor, numbers, token, machine


class SharedNumbers:
    """Float32 numbers, 0 at first, in memory that another process of this user may map."""

    def __init__(self, num_numbers: int) -> None:
        self.token = secrets.randbits(31)
        self.descriptor = os.memfd_create("gradients")
        self.close = weakref.finalize(self, os.close, self.descriptor)
        size = (num_numbers + _TOKEN_NUMBERS) * _BYTES
        os.ftruncate(self.descriptor, size)
        memory = mmap.mmap(self.descriptor, size)
        self.numbers, token = _views(memory)
        token.fill_(self.token)

    @classmethod
    def for_gradients(cls, num_numbers: int, device: torch.device) -> "SharedNumbers | None":
        """Shared numbers if this rank has one neighbour and no GPU, else None."""
        has_neighbour = num_ranks() == 2 and device.type == "cpu"
        return cls(num_numbers) if has_neighbour and hasattr(os, "memfd_create") else None


class Neighbour:
    """Sums this rank's gradients and the other rank's mapped ones."""

    def __init__(self, own: Tensor, other: Tensor) -> None:
        self._own = own
        self._other = other
        half = own.numel() // 2
        parts = slice(0, half), slice(half, own.numel())
        self._mine, self._theirs = parts if this_rank() == 0 else parts[::-1]

    @contextmanager
    def while_backward(self) -> Iterator[None]:
        """Nothing is sent before the end: no time would be hidden on cores that compute."""
        yield

    def finish(self) -> None:
        """Leave the sum in both ranks' gradients; each rank computes one half.

        Both call it, and synchronize before they write gradients again.
        """
        _await_other()
        self._own[self._mine].add_(self._other[self._mine])
        _await_other()
        self._own[self._theirs].copy_(self._other[self._theirs])


def meet(shared: SharedNumbers) -> Neighbour | None:
    """The other rank's numbers if both ranks can map each other's; else None on both.

    Both ranks call it. Afterwards no other process can map these numbers.
    """
    own = [os.getpid(), shared.descriptor, shared.numbers.numel(), shared.token, _machine()]
    table = torch.zeros(2, _FIELDS, dtype=torch.int64)
    table[this_rank()] = torch.tensor(own)
    sum_over_ranks(table)
    other = _mapped(table[1 - this_rank()].tolist(), own)
    num_mapped = sum_over_ranks(torch.tensor([float(other is not None)]))
    shared.close()
    if other is None or num_mapped < dist.get_world_size():
        return None
    return Neighbour(shared.numbers, other)


def _mapped(theirs: list[int], own: list[int]) -> Tensor | None:
    """The other rank's numbers; None if they cannot be mapped."""
    process, descriptor, num_numbers, token, machine = theirs
    if machine != own[-1] or num_numbers != own[2]:
        return None  # the same process id elsewhere is another process
    try:
        with Path(f"/proc/{process}/fd/{descriptor}").open("r+b") as file:
            memory = mmap.mmap(file.fileno(), (num_numbers + _TOKEN_NUMBERS) * _BYTES)
    except (OSError, ValueError):  # another user's, a guarded process, a container of its own
        return None
    numbers, found = _views(memory)
    return numbers if bool((found == token).all()) else None


def _views(memory: mmap.mmap) -> tuple[Tensor, Tensor]:
    """The numbers, and the token behind them as whole numbers."""
    numbers = torch.frombuffer(memory, dtype=torch.float32)
    return numbers[:-_TOKEN_NUMBERS], numbers[-_TOKEN_NUMBERS:].view(torch.int32)


def _machine() -> int:
    """The same number for processes that see each other under their process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return secrets.randbits(62)  # unlike any other
    return (zlib.crc32(boot) >> 1 << 32) | (namespace & 0xFFFFFFFF)


def _await_other() -> None:
    sum_over_ranks(torch.zeros(1))
