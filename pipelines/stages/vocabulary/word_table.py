"""A hash table of short words that numpy can search for millions of words at once.

A word of up to 16 bytes is two 64-bit numbers, so that equal keys are equal words: nothing rests on
a hash being lucky. Open addressing with linear probing; no word is ever removed.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from bert_core.randomness import fold_in

MAX_BYTES: Final = 16
_FIRST_SLOTS: Final = 2**16
_EMPTY: Final = -1

Keys = NDArray[np.uint64]  # [N, 2] the bytes of each word, zero-padded


class WordTable:
    """Numbers words by their keys, from 0 in the order of their first appearance."""

    def __init__(self) -> None:
        self._keys = np.empty((0, 2), dtype=np.uint64)
        self._slots = np.full(_FIRST_SLOTS, _EMPTY, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def number(self, keys: Keys) -> tuple[NDArray[np.int64], Keys]:
        """The number of each word, and the keys of those that were not there before, in order."""
        known = len(self._keys)
        numbers = self._find(keys)
        missing = np.flatnonzero(numbers == _EMPTY)
        if missing.size:
            new = _distinct(keys[missing])
            self._insert(new)
            numbers[missing] = self._find(keys[missing])
        return numbers, self._keys[known:]

    def _find(self, keys: Keys) -> NDArray[np.int64]:
        mask = self._slots.size - 1
        slot = (_hash(keys) & np.uint64(mask)).astype(np.int64)
        numbers = self._slots[slot]
        # Words whose slot holds another one look at the next slot, and so on.
        waiting = np.flatnonzero(numbers != _EMPTY)
        waiting = waiting[(self._keys[numbers[waiting]] != keys[waiting]).any(axis=1)]
        while waiting.size:
            slot[waiting] = (slot[waiting] + 1) & mask
            numbers[waiting] = self._slots[slot[waiting]]
            waiting = waiting[numbers[waiting] != _EMPTY]
            waiting = waiting[(self._keys[numbers[waiting]] != keys[waiting]).any(axis=1)]
        return numbers

    def _insert(self, new: Keys) -> None:
        """Add keys that are not there yet, each once."""
        first = len(self._keys)
        self._keys = np.concatenate([self._keys, new])
        if 2 * len(self._keys) > self._slots.size:
            size = self._slots.size
            while 2 * len(self._keys) > size:
                size *= 4
            self._slots = np.full(size, _EMPTY, dtype=np.int64)
            first = 0
        mask = self._slots.size - 1
        waiting = np.arange(first, len(self._keys))
        slot = (_hash(self._keys[first:]) & np.uint64(mask)).astype(np.int64)
        while waiting.size:
            free = self._slots[slot] == _EMPTY
            self._slots[slot[free]] = waiting[free]  # of several for one slot, the last stays
            placed = self._slots[slot] == waiting
            waiting, slot = waiting[~placed], (slot[~placed] + 1) & mask


def _distinct(keys: Keys) -> Keys:
    """Each key once, in the order of first appearance."""
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    ordered = keys[order]
    begins = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    return keys[np.sort(order[begins])]


def _hash(keys: Keys) -> NDArray[np.uint64]:
    return fold_in(keys[:, 0], keys[:, 1])
