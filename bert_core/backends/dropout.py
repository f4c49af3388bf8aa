"""Dropout that depends on where training stands and on nothing else.

Which elements are dropped is a function of (seed, step, micro-batch, call, element): a resumed run
draws what the killed one would have drawn, whatever other generators did.

Random numbers were a fifth of a step's time. Here a micro-batch draws one pool of random words;
a call takes the exclusive or of two chunks of it, at offsets that are its own.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.randomness import fold_in, random_bits

_POOL = 1 << 20  # words
_CHUNK = 1 << 18  # words read at a time
_BITS = 15  # of randomness in a word of 16: rates are exact to 1 in 32,768, and the sign is free


@dataclass(frozen=True, slots=True)
class DropoutMask:
    """What one call drops. It is drawn when it is asked for, the same each time, and not kept."""

    shape: tuple[int, ...]
    rate: float
    stream: int
    first_chunk: int
    pool: Tensor

    def signed_mask(self) -> Tensor:
        """int16 numbers that are negative where an element is dropped, with probability `rate`."""
        return self._words().sub_(self._threshold)

    def scale(self, dtype: torch.dtype) -> Tensor:
        """What elements are multiplied by: 0 where dropped, 1 / (1 - rate) elsewhere."""
        factor = 1 / (1 - self.rate)
        if dtype != torch.bfloat16:
            return (self._words() >= self._threshold).to(dtype).mul_(factor)
        # The same by bits: the sign of what is kept, spread over all of them, keeps the factor's.
        kept = torch.rsub(self._words(), self._threshold - 1).bitwise_right_shift_(15)
        bits = torch.tensor(factor, dtype=dtype).view(torch.int16).item()
        return kept.bitwise_and_(bits).view(dtype)

    @property
    def _threshold(self) -> int:
        return round(self.rate * (1 << _BITS))

    def _words(self) -> Tensor:
        """Random int16 numbers in [0, 2^15)."""
        result = torch.empty(self.shape, dtype=torch.int16, device=self.pool.device)
        parts = result.view(-1).split(_CHUNK)
        offsets = chunk_offsets(self.stream, self.first_chunk, len(parts))
        for part, left, right in zip(parts, *offsets.tolist(), strict=True):
            size = part.numel()
            torch.bitwise_xor(
                self.pool[left : left + size], self.pool[right : right + size], out=part
            )
        return result


@dataclass(slots=True)
class DropoutKey:
    """Draws the masks of one micro-batch's dropout calls, in the order of the calls."""

    stream: int
    _pool: Tensor | None = field(default=None, init=False)
    _num_drawn: int = field(default=0, init=False)

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int) -> "DropoutKey":
        """The dropout_key for one micro-batch of a step, counted over all ranks."""
        return cls(int(random_bits(seed, "dropout", step, micro_batch)))

    def mask(self, values: Tensor, rate: float) -> DropoutMask:
        """The next call's mask, for elements of the shape and on the device of `values`."""
        if self._pool is None:
            self._pool = _random_words(self.stream, values.device)
        first = self._num_drawn
        self._num_drawn += -(-values.numel() // _CHUNK)
        return DropoutMask(tuple(values.shape), rate, self.stream, first, self._pool)


def chunk_offsets(stream: int, first_chunk: int, num_chunks: int) -> NDArray[np.uint64]:
    """[2, num_chunks] where in the pool the two chunks of each pair begin, never at the same word.

    The exclusive or of a chunk with itself is zero, and would drop everything.
    """
    drawn = fold_in(stream, np.arange(first_chunk, first_chunk + num_chunks))
    num_offsets = np.uint64(_POOL - _CHUNK)
    lefts = (drawn & np.uint64(0xFFFFFFFF)) % num_offsets
    distances = 1 + (drawn >> np.uint64(32)) % (num_offsets - np.uint64(1))
    return np.stack([lefts, (lefts + distances) % num_offsets])


def _random_words(stream: int, device: torch.device) -> Tensor:
    words = np.random.SFC64(stream).random_raw(_POOL // 4).view(np.int16)
    return torch.from_numpy(words & ((1 << _BITS) - 1)).to(device, non_blocking=True)


def dropout_mask(values: Tensor, rate: float, dropout_key: DropoutKey | None) -> DropoutMask | None:
    """What is dropped of `values`; None where nothing is."""
    return None if dropout_key is None or rate == 0.0 else dropout_key.mask(values, rate)


def dropout(values: Tensor, rate: float, dropout_key: DropoutKey | None) -> Tensor:
    """Zero elements at `rate`, scale the rest by 1 / (1 - rate); nothing without a dropout_key."""
    mask = dropout_mask(values, rate, dropout_key)
    return values if mask is None else values * mask.scale(values.dtype)
