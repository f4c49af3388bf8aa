"""Which documents are the same: content hashes, the ids made of them, and exact duplicates."""

import hashlib
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

GROUP_DIGITS: Final = 32  # of an id: the document; what follows counts its pieces
_WHITE_SPACE: Final = b" \n"  # all that a mended text has
_KEYS_AT_ONCE: Final = 8_000_000  # about 0.6 GB while they are sorted


def content_hash(text: str) -> str:
    """32 hexadecimal digits that texts share which differ in case and white space only."""
    plain = text.lower().encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return hashlib.blake2b(plain, digest_size=16).hexdigest()


def document_id(content: str, group: str | None, piece: int) -> str:
    """Id of a document, or of one piece of it; equal inputs give equal ids in any run."""
    return content if group is None else f"{group}.{piece:06d}"


def group_of(identifier: str) -> str:
    """What the pieces of one document share."""
    return identifier[:GROUP_DIGITS]


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
