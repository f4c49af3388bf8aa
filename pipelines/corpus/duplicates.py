"""Exact duplicates across the whole corpus, found from content hashes alone."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

_KEYS_AT_ONCE: Final = 8_000_000  # about 0.6 GB while they are sorted


def find_repeated(
    load: Callable[[int], NDArray[np.void]], counts: list[int]
) -> list[NDArray[np.bool_]]:
    """For each file's documents: True where a document with the same content came before.

    `load(index)` gives the keys of a file (`screening.KEY_TYPE`), `counts` their numbers. Large
    corpora are searched in several rounds, each over the keys of one residue, so that memory does
    not grow with the corpus but for one byte a document.
    """
    is_repeated = [np.zeros(count, dtype=np.bool_) for count in counts]
    rounds = max(1, -(-sum(counts) // _KEYS_AT_ONCE))
    for residue in range(rounds):
        keys: list[NDArray[np.void]] = []
        rows: list[NDArray[np.int64]] = []
        files: list[NDArray[np.int64]] = []
        for index in range(len(counts)):
            loaded = load(index)
            row = np.flatnonzero(loaded["low"] % rounds == residue)
            keys.append(loaded[row])
            rows.append(row)
            files.append(np.full(row.size, index))
        flat, row, file = np.concatenate(keys), np.concatenate(rows), np.concatenate(files)
        order = np.lexsort((flat["low"], flat["high"]))  # stable: the first stays the first
        high, low = flat["high"][order], flat["low"][order]
        again = order[1:][(high[1:] == high[:-1]) & (low[1:] == low[:-1])]
        for index in np.unique(file[again]):
            is_repeated[index][row[again][file[again] == index]] = True
    return is_repeated
