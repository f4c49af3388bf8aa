"""Random numbers that depend on their purpose and index, never on the process or the order.

Every draw is a hash of (seed, purpose, index, ...): the same arguments give the same bits in any
process, any order and on any machine, and the draw for example 10**12 costs as much as the first.
The mixing function is splitmix64's finalizer (Steele, Lea and Flood, "Fast Splittable Pseudorandom
Number Generators", 2014); `Permutation` is a generalized Feistel network with cycle walking (Black
and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
"""

import hashlib
import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Bits = NDArray[np.uint64]

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def random_bits(seed: int, purpose: str, *indices: ArrayLike) -> Bits:
    """64 random bits for each element of the broadcast `indices` (integers, any sign).

    Draws of different seeds, purposes or index tuples are independent of each other.
    """
    bits: Bits = np.asarray(_stream(seed, purpose))
    for index in indices:
        bits = fold_in(bits, index)
    return bits


def fold_in(bits: ArrayLike, index: ArrayLike) -> Bits:
    """Bits of the child `index` of the stream `bits`; broadcasts."""
    parent = np.asarray(bits, dtype=np.uint64)
    child = np.asarray(index)
    if child.dtype != np.uint64:
        child = child.astype(np.int64).astype(np.uint64)
    # Overflow is the arithmetic meant here; numpy warns of it for scalars, never for arrays.
    shape = np.broadcast_shapes(parent.shape, child.shape)
    steps = np.atleast_1d(child) * _GOLDEN_GAMMA + _GOLDEN_GAMMA
    return _mix(np.atleast_1d(parent) ^ _mix(steps)).reshape(shape)


def uniform(bits: ArrayLike) -> NDArray[np.float64]:
    """A number in [0, 1) from each element of `bits`, on a grid of 2**-53."""
    whole: NDArray[np.float64] = (np.asarray(bits, dtype=np.uint64) >> np.uint64(11)).astype(float)
    return whole * np.float64(2.0**-53)


def integers(bits: ArrayLike, bound: ArrayLike) -> NDArray[np.int64]:
    """An integer in [0, bound) from each element of `bits`, for bounds from 1 to 2**31.

    The share of each value is off by at most bound / 2**32 of itself (multiply-shift).
    """
    high = np.asarray(bits, dtype=np.uint64) >> np.uint64(32)
    return ((high * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)


class Permutation:
    """A shuffle of range(size) for (seed, purpose, indices) that is evaluated where asked.

    It stores nothing: `permutation[positions]` computes the members at these positions, for any
    integer array of positions in [0, size), a size of at most 2**62. Raises IndexError for a
    position outside.
    """

    _ROUNDS = 8

    def __init__(self, size: int, seed: int, purpose: str, *indices: int) -> None:
        assert 1 <= size <= 2**62
        self.size = size
        # The network shuffles a rectangle that is hardly larger than `size`.
        rows = math.isqrt(size - 1) + 1
        self._rows, self._columns = np.uint64(rows), np.uint64(-(-size // rows))
        stream = random_bits(seed, purpose, *indices)
        self._round_keys = fold_in(stream, np.arange(self._ROUNDS))

    def __getitem__(self, positions: ArrayLike) -> NDArray[np.int64]:
        position = np.asarray(positions)
        if position.size and (int(position.min()) < 0 or int(position.max()) >= self.size):
            raise IndexError(f"positions must lie in [0, {self.size}), got {positions!r}")
        value = self._shuffle(np.atleast_1d(position).astype(np.uint64))
        # Values outside the range walk along their cycle until they re-enter.
        outside = np.flatnonzero(value >= self.size)
        while outside.size:
            value[outside] = self._shuffle(value[outside])
            outside = outside[value[outside] >= self.size]
        return value.astype(np.int64).reshape(position.shape)

    def _shuffle(self, value: Bits) -> Bits:
        row, column = value // self._columns, value % self._columns
        for number, key in enumerate(self._round_keys):
            if number % 2:
                row = (row + _mix(column ^ key) % self._rows) % self._rows
            else:
                column = (column + _mix(row ^ key) % self._columns) % self._columns
        return row * self._columns + column


@lru_cache(maxsize=1024)
def _stream(seed: int, purpose: str) -> np.uint64:
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def _mix(value: Bits) -> Bits:
    """Splitmix64's finalizer: a bijection in which every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * _MULTIPLIER_1
    value = (value ^ (value >> np.uint64(27))) * _MULTIPLIER_2
    return value ^ (value >> np.uint64(31))
