"""Dropout that depends on nothing but the position in a training run.

On a CPU, whether an element is dropped is a function of (seed, step, micro-batch, layer, site,
element), whatever the order of calls: a resumed run draws the same masks, and a layer that is
computed twice drops the same elements. On a GPU, and in compiled layers, torch draws them, from a
generator that is seeded with (seed, step, micro-batch).

torch's own random numbers were a fifth of a step's time on a CPU. Here a micro-batch draws one pool
of random words. Successive chunks of a site's elements each read the exclusive or of two stretches
of the pool, at offsets that are a hash of (layer, site, chunk). In attention each sequence of a
batch has a stream of its own: element (h, q, k) of a sequence of S tokens is word (h * S + q) * S
+ k, however the batch is sorted, grouped or padded. N sequences, S tokens, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bert_core.randomness import fold_in, random_bits

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

    bits: int  # 64 of (seed, step, micro-batch)
    pool: Tensor | None  # [2^20] int16 in [0, 2^15), on a CPU
    layer: int = 0  # 0 is outside of the layers

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int, device: torch.device | str = "cpu") -> Self:
        """The key of one micro-batch of a step, counted over all ranks.

        For a GPU it seeds torch's generators.
        """
        bits = int(random_bits(seed, "dropout", step, micro_batch))
        if torch.device(device).type != "cpu":
            torch.manual_seed(bits >> 1)
            return cls(bits, None)
        words = np.random.SFC64(bits).random_raw(_POOL // 4).view(np.int16)
        words &= (1 << _BITS) - 1
        return cls(bits, torch.from_numpy(words))

    def at_layer(self, index: int) -> "DropoutKey":
        """The key of the encoder's layer `index`, counted from 0."""
        return replace(self, layer=index + 1)

    def offsets(
        self, site: int, num_chunks: int, num_sequences: int | None = None
    ) -> NDArray[np.int64]:
        """[2, chunks] or [2, N, chunks] where in the pool the stretches of a site's chunks begin.

        The two always differ: the exclusive or of a stretch with itself drops everything.
        """
        streams = fold_in(fold_in(np.uint64(self.bits), self.layer), site)
        if num_sequences is not None:
            streams = fold_in(streams, np.arange(num_sequences))
        drawn = fold_in(streams[..., None], np.arange(num_chunks))
        lefts = (drawn & np.uint64(0xFFFFFFFF)) % np.uint64(_NUM_OFFSETS)
        distances = 1 + (drawn >> np.uint64(32)) % np.uint64(_NUM_OFFSETS - 1)
        return np.stack([lefts, (lefts + distances) % np.uint64(_NUM_OFFSETS)]).astype(np.int64)

    def draw(self, words: Tensor, offsets: NDArray[np.int64]) -> Tensor:
        """Fill [elements] int16 with numbers in [0, 2^15), of chunks with [2, chunks] offsets."""
        assert self.pool is not None, "dropout on a CPU needs a key that was made for it"
        for part, left, right in zip(words.split(CHUNK), *offsets.tolist(), strict=False):
            size = part.numel()
            lefts, rights = self.pool[left : left + size], self.pool[right : right + size]
            torch.bitwise_xor(lefts, rights, out=part)
        return words


@dataclass(frozen=True, slots=True, eq=False)
class _Dropout:
    """What is dropped at `rate`."""

    key: DropoutKey
    rate: float

    @property
    def factor(self) -> float:
        """What kept elements are multiplied by, 1 / (1 - rate).

        A number, never a tensor of the values' format: bfloat16 would round 1 / 0.9 to 1.109375.
        """
        return 1 / (1 - self.rate)

    @property
    def threshold(self) -> int:
        """Words below it are dropped."""
        return round(self.rate * (1 << _BITS))


@dataclass(frozen=True, slots=True, eq=False)
class DropoutMask(_Dropout):
    """What one site drops of values of a shape; drawn at each use, the same each time."""

    site: int
    shape: tuple[int, ...]

    def kept(self, dtype: torch.dtype) -> Tensor:
        """0 where an element is dropped, 1 elsewhere."""
        words = self.words()
        if dtype != torch.bfloat16:
            return (words >= self.threshold).to(dtype)
        # The same by bits: the sign of what is kept, spread over all of them, keeps those of a 1.
        kept = torch.rsub(words, self.threshold - 1).bitwise_right_shift_(15)
        return kept.bitwise_and_(_ONE_IN_BFLOAT16).view(dtype)

    def words(self) -> Tensor:
        """Random int16 numbers in [0, 2^15); those below the threshold are dropped."""
        words = torch.empty(self.shape, dtype=torch.int16)
        offsets = self.key.offsets(self.site, -(-words.numel() // CHUNK))
        self.key.draw(words.view(-1), offsets)
        return words


@dataclass(frozen=True, slots=True, eq=False)
class AttentionDropout(_Dropout):
    """What is dropped of the probabilities of one layer's attention."""

    def offsets(self, num_sequences: int, num_heads: int, longest: int) -> NDArray[np.int64]:
        """[N, 2, chunks] where in the pool the words of each sequence of the batch begin."""
        num_chunks = -(-num_heads * longest**2 // CHUNK)
        site = int(Site.ATTENTION_PROBABILITIES)
        return self.key.offsets(site, num_chunks, num_sequences).swapaxes(0, 1)

    def signs(
        self,
        offsets: NDArray[np.int64],
        sequences: Sequence[tuple[int, int]],
        num_heads: int,
        size: int,
    ) -> Tensor:
        """[N * H, S, S] int16, negative where a probability is dropped.

        `sequences` holds the place in the batch and the length of each of N. Those shorter than
        `size` fill the upper left corner of their squares.
        """
        assert self.key.pool is not None, "dropout on a CPU needs a key that was made for it"
        # By numpy: the squares of short sequences are so small that torch's calls would take longer
        # than what they do.
        pool = self.key.pool.numpy()
        words = np.zeros((len(sequences), num_heads, size, size), dtype=np.int16)
        for square, (place, length) in zip(words, sequences, strict=True):
            shape, end = (num_heads, length, length), num_heads * length**2
            if end <= CHUNK:
                (left, *_), (right, *_) = offsets[place].tolist()
                np.bitwise_xor(
                    pool[left : left + end].reshape(shape),
                    pool[right : right + end].reshape(shape),
                    out=square if length == size else square[:, :length, :length],
                )
            else:
                drawn = self.key.draw(torch.empty(end, dtype=torch.int16), offsets[place])
                square[:, :length, :length] = drawn.numpy().reshape(shape)
        return torch.from_numpy(words).flatten(0, 1).sub_(self.threshold)

    def kept(self, lengths: Sequence[int], num_heads: int, dtype: torch.dtype) -> Tensor:
        """[N, H, S, S] 0 where a probability is dropped, 1 elsewhere, for a whole batch."""
        size = max(lengths)
        offsets = self.offsets(len(lengths), num_heads, size)
        signs = self.signs(offsets, tuple(enumerate(lengths)), num_heads, size)
        return (signs >= 0).to(dtype).unflatten(0, (len(lengths), num_heads))


def draws_by_torch(values: Tensor) -> bool:
    """Whether torch's generator decides what is dropped of `values`."""
    return values.device.type != "cpu" or torch.compiler.is_compiling()


def dropout_mask(
    values: Tensor, rate: float, key: DropoutKey | None, site: Site
) -> DropoutMask | None:
    """What is dropped of `values`; None if nothing is."""
    if key is None or rate == 0.0:
        return None
    return DropoutMask(key, rate, int(site), tuple(values.shape))


def attention_dropout(key: DropoutKey | None, rate: float) -> AttentionDropout | None:
    """What attention drops; None if it drops nothing."""
    return None if key is None or rate == 0.0 else AttentionDropout(key, rate)


def without_dropped(values: Tensor, mask: DropoutMask | None) -> Tensor:
    """Zero what `mask` drops of `values`, and scale the rest by 1 / (1 - rate)."""
    if mask is None:
        return values
    if draws_by_torch(values):
        return F.dropout(values, mask.rate)
    return values * mask.kept(values.dtype) * mask.factor
