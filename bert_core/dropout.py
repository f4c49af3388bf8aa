"""Dropout that depends on where training stands and on nothing else.

Which elements are dropped is a hash of (seed, step, micro-batch, call, element): no generator's
state is touched, so a resumed run draws what the killed one would have drawn.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bert_core.randomness import fold_in, random_bits

_BITS = 16  # of randomness an element gets: rates are exact to 1 in 65,536


@dataclass(slots=True)
class DropoutKeys:
    """The keys of one micro-batch's dropout calls, in the order of the calls."""

    stream: int
    _num_drawn: int = field(default=0, init=False)

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int) -> "DropoutKeys":
        """The keys of one micro-batch of a step, counted over all ranks."""
        return cls(int(random_bits(seed, "dropout", step, micro_batch)))

    def next(self) -> int:
        """A key nobody else has: 32 bits, signed."""
        key = int(fold_in(self.stream, self._num_drawn)) & 0xFFFFFFFF
        self._num_drawn += 1
        return key - (1 << 32) if key >= 1 << 31 else key


def keep_mask(key: int, size: torch.Size | tuple[int, ...], rate: float, device) -> Tensor:
    """True where an element of `size` is kept, each with probability 1 - `rate`."""
    numel = torch.Size(size).numel()
    # The finalizer of `lowbias32` (Wellons, 2018) with arithmetic shifts; one word, two elements.
    word = torch.arange((numel + 1) // 2, dtype=torch.int32, device=device)
    word.mul_(-1640531527).add_(key)
    word ^= word >> 16
    word *= 0x7FEB352D
    word ^= word >> 15
    word *= -2073254261
    word ^= word >> 16
    threshold = round(rate * (1 << _BITS)) - (1 << (_BITS - 1))
    return (word.view(torch.int16)[:numel] >= threshold).view(size)


def dropout(values: Tensor, rate: float, keys: DropoutKeys | None) -> Tensor:
    """Zero elements at `rate` and scale the rest by 1 / (1 - rate); without keys, do nothing."""
    if keys is None or rate == 0.0:
        return values
    return values * keep_mask(keys.next(), values.shape, rate, values.device) * (1 / (1 - rate))
