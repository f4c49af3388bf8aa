"""Dropout that depends on where training stands and on nothing else.

Whether an element is dropped is a function of (seed, step, micro-batch, layer, site, element). No
call order enters it: a resumed run draws what the killed one would have drawn, a layer that is
computed a second time drops what it dropped the first time, and layers may be compiled or skipped.

Random numbers were a fifth of a step's time on a CPU. Here a micro-batch draws one pool of random
words. Successive chunks of a site's elements each read the exclusive or of two stretches of the
pool, at offsets that are a hash of (layer, site, chunk). A CPU takes the stretches one by one, a
compiler is shown the same words as one expression over the elements.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bert_core.batch import to_device
from bert_core.randomness import fold_in, fold_in_word, random_bits

_CHILDREN = 1 << 40  # where layers are counted from 0: no layer's bits are those of a child
_POOL = 1 << 20  # words
CHUNK = 1 << 18  # elements that share a pair of offsets
_NUM_OFFSETS = _POOL - CHUNK
_ONE_IN_BFLOAT16 = 0x3F80  # its bits
_BITS = 15  # of randomness in a word of 16: rates are exact to 1 in 32,768, and the sign is free


class Site(IntEnum):
    """Where in a layer, or around the layers, something is dropped."""

    EMBEDDINGS = 0
    ATTENTION_PROBABILITIES = 1
    ATTENTION_OUTPUT = 2
    FEED_FORWARD_OUTPUT = 3
    HEAD = 4


@dataclass(frozen=True, slots=True, eq=False)
class DropoutKey:
    """What one micro-batch drops, in a layer of it; it draws nothing until a mask is asked for."""

    bits: Tensor  # [] int64 of (seed, step, micro-batch), on the device, for traced expressions
    host_tensor: Tensor  # [] int64, the same on the host, for kernels that draw themselves
    pool: Tensor  # [2^20] int16 in [0, 2^15)
    layer: int = 0  # 0 is outside of the layers

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int, device: torch.device | str = "cpu") -> Self:
        """The key of one micro-batch of a step, counted over all ranks."""
        host_bits = int(random_bits(seed, "dropout", step, micro_batch))
        words = np.random.SFC64(host_bits).random_raw(_POOL // 4).view(np.int16)
        words &= (1 << _BITS) - 1
        host_tensor = torch.tensor(_signed(host_bits))
        bits, pool = to_device(host_tensor, device), to_device(torch.from_numpy(words), device)
        return cls(bits, host_tensor, pool)

    def child(self, index: int) -> "DropoutKey":
        """The key of pass `index`, from 0, of a micro-batch that the encoder reads several times.

        Passes under one key drop the same; those of its children, and its own, are independent.
        """
        bits, host_tensor = (
            fold_in_tensor(fold_in_tensor(parent, _CHILDREN), index)
            for parent in (self.bits, self.host_tensor)
        )
        return DropoutKey(bits, host_tensor, self.pool)

    def at_layer(self, index: int) -> "DropoutKey":
        """The key of the encoder's layer `index`, counted from 0."""
        return DropoutKey(self.bits, self.host_tensor, self.pool, index + 1)

    def mask(self, site: Site, values: Tensor, rate: float) -> "DropoutMask":
        """What is dropped of `values` at `site`, by the position of each element in them."""
        return DropoutMask(self, int(site), tuple(values.shape), rate)

    def host_stream(self, site: int) -> int:
        """The 64 bits that belong to a site of this layer."""
        bits = int(self.host_tensor) & 0xFFFFFFFFFFFFFFFF
        return fold_in_word(fold_in_word(bits, self.layer), site)

    def stream(self, site: int) -> Tensor:
        """[] int64 the same, as an expression."""
        return fold_in_tensor(fold_in_tensor(self.bits, self.layer), site)


@dataclass(frozen=True, slots=True, eq=False)
class DropoutMask:
    """What one site drops. It is drawn when it is asked for, the same each time, and not kept."""

    key: DropoutKey
    site: int
    shape: tuple[int, ...]
    rate: float

    @property
    def factor(self) -> float:
        """What kept elements are multiplied by, 1 / (1 - rate).

        A number, never a tensor of the values' format: bfloat16 would round 1 / 0.9 to 1.109375.
        """
        return 1 / (1 - self.rate)

    def kept(self, dtype: torch.dtype) -> Tensor:
        """0 where an element is dropped, 1 elsewhere."""
        words = self.words()
        if dtype != torch.bfloat16 or draws_by_expression(words):
            return (words >= threshold(self.rate)).to(dtype)
        # The same by bits: the sign of what is kept, spread over all of them, keeps those of a 1.
        kept = torch.rsub(words, threshold(self.rate) - 1).bitwise_right_shift_(15)
        return kept.bitwise_and_(_ONE_IN_BFLOAT16).view(dtype)

    def words(self) -> Tensor:
        """Random int16 numbers in [0, 2^15); those below the threshold are dropped."""
        pool = self.key.pool
        if draws_by_expression(pool):
            return self._words_by_expression()
        result = torch.empty(self.shape, dtype=torch.int16)
        stream = self.key.host_stream(self.site)
        for number, part in enumerate(result.view(-1).split(CHUNK)):
            left, right = chunk_offset(stream, number)
            size = part.numel()
            torch.bitwise_xor(pool[left : left + size], pool[right : right + size], out=part)
        return result

    def _words_by_expression(self) -> Tensor:
        size = 1
        for extent in self.shape:
            size = size * extent
        pool = self.key.pool
        element = torch.arange(size, device=pool.device)
        lefts, rights = chunk_offsets_tensor(self.key.stream(self.site), -(-size // CHUNK))
        chunk, within = element // CHUNK, element % CHUNK
        return (pool[lefts[chunk] + within] ^ pool[rights[chunk] + within]).view(self.shape)


def draws_by_expression(pool: Tensor) -> bool:
    """Whether masks are drawn as one traceable expression, not stretch by stretch."""
    return pool.device.type != "cpu" or torch.compiler.is_compiling()


def threshold(rate: float) -> int:
    """Words below it are dropped."""
    return round(rate * (1 << _BITS))


def chunk_offset(stream: int, chunk: int) -> tuple[int, int]:
    """Where in the pool the stretches of one chunk of a stream begin.

    They are never the same: the exclusive or of a stretch with itself would drop everything.
    """
    drawn = fold_in_word(stream, chunk)
    left = (drawn & 0xFFFFFFFF) % _NUM_OFFSETS
    distance = 1 + (drawn >> 32) % (_NUM_OFFSETS - 1)
    return left, (left + distance) % _NUM_OFFSETS


def chunk_offsets(stream: ArrayLike, num_chunks: int) -> NDArray[np.int64]:
    """[2, ..., num_chunks] the `chunk_offset` of each chunk of [...] streams."""
    drawn = fold_in(np.asarray(stream, dtype=np.uint64)[..., None], np.arange(num_chunks))
    lefts = (drawn & np.uint64(0xFFFFFFFF)) % np.uint64(_NUM_OFFSETS)
    distances = 1 + (drawn >> np.uint64(32)) % np.uint64(_NUM_OFFSETS - 1)
    return np.stack([lefts, (lefts + distances) % np.uint64(_NUM_OFFSETS)]).astype(np.int64)


def chunk_offsets_tensor(stream: Tensor, num_chunks: int) -> tuple[Tensor, Tensor]:
    """`chunk_offsets` of int64 [...] streams as an expression: two of [..., num_chunks]."""
    index = torch.arange(num_chunks, device=stream.device)
    drawn = fold_in_tensor(stream[..., None], index)
    lefts = (drawn & 0xFFFFFFFF) % _NUM_OFFSETS
    distances = 1 + _shift_right(drawn, 32) % (_NUM_OFFSETS - 1)
    return lefts, (lefts + distances) % _NUM_OFFSETS


def fold_in_tensor(bits: Tensor, index: Tensor | int) -> Tensor:
    """`randomness.fold_in` on int64 tensors, whose products wrap like those of unsigned words."""
    if isinstance(index, int):
        # Not `as_tensor`: it copies to a GPU while the host waits, and makes a compiler take each
        # number for a graph of its own.
        index = torch.full((), index, dtype=torch.int64, device=bits.device)
    return _mix(bits ^ _mix(index * _GOLDEN_GAMMA + _GOLDEN_GAMMA))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _MULTIPLIER_1
    value = (value ^ _shift_right(value, 27)) * _MULTIPLIER_2
    return value ^ _shift_right(value, 31)


def _shift_right(value: Tensor, count: int) -> Tensor:
    """A shift that fills with zeros; int64 ones fill with the sign."""
    return (value >> count) & ((1 << (64 - count)) - 1)


def dropout_mask(
    values: Tensor, rate: float, key: DropoutKey | None, site: Site
) -> DropoutMask | None:
    """What is dropped of `values`; None where nothing is."""
    return None if key is None or rate == 0.0 else key.mask(site, values, rate)


def dropout(values: Tensor, rate: float, key: DropoutKey | None, site: Site) -> Tensor:
    """Zero elements at `rate`, scale the rest by 1 / (1 - rate); nothing without a key."""
    mask = dropout_mask(values, rate, key, site)
    return values if mask is None else values * mask.kept(values.dtype) * mask.factor
