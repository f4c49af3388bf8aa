"""Dropout that depends on nothing but the position in a training run.

Whether an element is dropped is a function of (seed, step, micro-batch, layer, site, element),
whatever the order of calls: a resumed run draws the same masks, a layer that is computed twice
drops the same elements, and layers may be compiled or skipped.

Random numbers were a fifth of a step's time on a CPU. Here a micro-batch draws one pool of random
words. Successive chunks of a site's elements each read the exclusive or of two stretches of the
pool, at offsets that are a hash of (layer, site, chunk), made on the host. A CPU takes the
stretches one by one; a GPU and a compiler index the pool by element.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bert_core.ragged import to_device
from bert_core.randomness import fold_in, fold_in_word, random_bits

_CHILDREN = 1 << 40  # larger than any layer: no layer has the bits of a child
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
    """The key of one micro-batch's masks, at one layer; nothing is drawn before a mask is used."""

    # [] int64 of (seed, step, micro-batch), on the host; a compiler would bake a number in
    bits: Tensor
    pool: Tensor  # [2^20] int16 in [0, 2^15)
    layer: int = 0  # 0 is outside of the layers

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int, device: torch.device | str = "cpu") -> Self:
        """The key of one micro-batch of a step, counted over all ranks."""
        host_bits = int(random_bits(seed, "dropout", step, micro_batch))
        words = np.random.SFC64(host_bits).random_raw(_POOL // 4).view(np.int16)
        words &= (1 << _BITS) - 1
        return cls(_tensor_of(host_bits), torch.from_numpy(words)).to(device)

    def to(self, device: torch.device | str) -> Self:
        """The same key on `device`; the copy to a GPU does not block."""
        return replace(self, pool=to_device(self.pool, device))

    def child(self, index: int) -> "DropoutKey":
        """The key of pass `index`, from 0, of a micro-batch that the encoder reads several times.

        Passes under one key drop the same; masks of its children and its own are independent.
        """
        bits = fold_in_word(fold_in_word(word_of(self.bits), _CHILDREN), index)
        return DropoutKey(_tensor_of(bits), self.pool)

    def at_layer(self, index: int) -> "DropoutKey":
        """The key of the encoder's layer `index`, counted from 0."""
        return DropoutKey(self.bits, self.pool, index + 1)

    def mask(self, site: Site, values: Tensor, rate: float) -> "DropoutMask":
        """What is dropped of `values` at `site`, by the position of each element in them."""
        return DropoutMask(self, int(site), tuple(values.shape), rate)

    def offsets(
        self, site: int, num_chunks: int, num_sequences: int | None = None
    ) -> NDArray[np.int64]:
        """[2, chunks] where in the pool the stretches of a site's chunks begin, on the host.

        [2, N, chunks] where each of N sequences has a stream of its own.
        """
        return _offsets(word_of(self.bits), self.layer, site, num_chunks, num_sequences)

    def words_at(self, element: Tensor, offsets: Tensor) -> Tensor:
        """The words of elements of a stream whose chunks begin at `offsets` [2, chunks]."""
        (lefts, rights), chunk, within = offsets, element // CHUNK, element % CHUNK
        return self.pool[lefts[chunk] + within] ^ self.pool[rights[chunk] + within]


@dataclass(frozen=True, slots=True, eq=False)
class DropoutMask:
    """What one site drops. It is drawn at each use, the same each time, and not kept."""

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
        parts = result.view(-1).split(CHUNK)
        offsets = self.key.offsets(self.site, len(parts))
        for part, left, right in zip(parts, *offsets.tolist(), strict=True):
            size = part.numel()
            torch.bitwise_xor(pool[left : left + size], pool[right : right + size], out=part)
        return result

    def _words_by_expression(self) -> Tensor:
        size = 1
        for extent in self.shape:
            size = size * extent
        key = self.key
        element = torch.arange(size, device=key.pool.device)
        offsets = offsets_on(
            key.pool.device, key.bits, key.layer, self.site, -(-size // CHUNK), None
        )
        return key.words_at(element, offsets).view(self.shape)


def draws_by_expression(pool: Tensor) -> bool:
    """Whether masks are drawn as one traceable expression, not stretch by stretch."""
    return pool.device.type != "cpu" or torch.compiler.is_compiling()


def threshold(rate: float) -> int:
    """Words below it are dropped."""
    return round(rate * (1 << _BITS))


def _offsets(
    bits: int, layer: int, site: int, num_chunks: int, num_sequences: int | None
) -> NDArray[np.int64]:
    """The two always differ: the exclusive or of a stretch with itself drops everything."""
    stream = np.uint64(fold_in_word(fold_in_word(bits, layer), site))
    streams = stream if num_sequences is None else fold_in(stream, np.arange(num_sequences))
    drawn = fold_in(np.asarray(streams)[..., None], np.arange(num_chunks))
    lefts = (drawn & np.uint64(0xFFFFFFFF)) % np.uint64(_NUM_OFFSETS)
    distances = 1 + (drawn >> np.uint64(32)) % np.uint64(_NUM_OFFSETS - 1)
    return np.stack([lefts, (lefts + distances) % np.uint64(_NUM_OFFSETS)]).astype(np.int64)


@torch.library.custom_op("bertsmith::dropout_offsets", mutates_args=())
def offsets_on(
    device: torch.device,
    bits: Tensor,
    layer: int,
    site: int,
    num_chunks: int,
    num_sequences: int | None,
) -> Tensor:
    """`DropoutKey.offsets` on a device; an operator, which a compiler does not trace into."""
    offsets = _offsets(word_of(bits), layer, site, num_chunks, num_sequences)
    return to_device(torch.from_numpy(offsets), device)


@offsets_on.register_fake
def _(
    device: torch.device,
    bits: Tensor,
    layer: int,
    site: int,
    num_chunks: int,
    num_sequences: int | None,
) -> Tensor:
    shape = (2, num_chunks) if num_sequences is None else (2, num_sequences, num_chunks)
    return torch.empty(shape, dtype=torch.int64, device=device)


def word_of(bits: Tensor) -> int:
    """The unsigned word of a key's `bits`."""
    return int(bits) & 0xFFFFFFFFFFFFFFFF


def _tensor_of(word: int) -> Tensor:
    return torch.tensor(word - (1 << 64) if word >> 63 else word)


def dropout_mask(
    values: Tensor, rate: float, key: DropoutKey | None, site: Site
) -> DropoutMask | None:
    """What is dropped of `values`; None if nothing is."""
    return None if key is None or rate == 0.0 else key.mask(site, values, rate)


def dropout(values: Tensor, rate: float, key: DropoutKey | None, site: Site) -> Tensor:
    """Zero elements at `rate`, scale the rest by 1 / (1 - rate); nothing without a key."""
    mask = dropout_mask(values, rate, key, site)
    return values if mask is None else values * mask.kept(values.dtype) * mask.factor
