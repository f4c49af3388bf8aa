"""Which documents stay, on which side, and how often: duplicates, and the division by content.

MinHash (Broder, 1997) estimates the Jaccard similarity of two documents' sets of runs of five words
from 64 numbers each, with a standard deviation of 0.05 at a similarity of 0.8; banding (Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3) finds the pairs worth comparing
without comparing all. What of planted duplicates is found is measured in decision 33.

What is held out, and how often a document enters the corpus, is drawn from its own content, before
anything is learned: adding or removing other documents moves none from one side to the other. The
pieces of one document stay together.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bert_core.randomness import fold_in, random_bits, uniform
from pipelines.errors import UserError
from pipelines.stages.corpus.settings import FEWEST_DOCUMENTS

_MORE_THAN_ASKED: Final = 0.2  # of the text
_FINER: Final = (
    "set a finer layout of the text (--layout, or layout of the source): blank_line, in which each "
    "block between blank lines is a document, line, or page for PDF files"
)
_WHITE_SPACE: Final = b" \n"  # the only one in a mended text
_KEYS_AT_ONCE: Final = 8_000_000  # about 0.6 GB while they are sorted
NUM_HASHES: Final = 64
_RUN: Final = 5  # words
_NUM_BANDS: Final = 16  # of four hashes each: a pair alike in 0.8 of all meets with 99.98%
_RUNS_AT_ONCE: Final = 4096
_LONGEST_MEAN_WORD: Final = 15  # letters; above, words are not parted by blanks: letters count
_MULTIPLIERS: Final = random_bits(0, "minhash", np.arange(NUM_HASHES)) | np.uint64(1)

# A document's content hash, in two halves, and the beginning of its group's.
KEY_TYPE: Final = np.dtype([("high", ">u8"), ("low", ">u8"), ("group", ">u8")])

Signature = NDArray[np.uint32]


def content_hash(text: str) -> str:
    """32 hexadecimal digits, equal for texts that differ only in case and white space."""
    plain = text.lower().encode("utf-8", "surrogatepass").translate(None, _WHITE_SPACE)
    return hashlib.blake2b(plain, digest_size=16).hexdigest()


def find_repeated(
    load: Callable[[int], NDArray[np.void]], counts: list[int]
) -> list[NDArray[np.bool_]]:
    """For each file's documents: True where a document with the same content came before.

    `load(index)` gives the keys of a file (`KEY_TYPE`), `counts` their numbers. Large
    corpora are searched in several rounds, each over the keys of one residue, so that memory grows
    with the corpus by only one byte a document.
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


def signature(text: str) -> Signature:
    """64 minima over the hashed runs of a document."""
    words: Sequence[str] = text.lower().split()
    if len(text) > _LONGEST_MEAN_WORD * max(1, len(words)):
        words = "".join(words)
    hashes = np.fromiter(
        (zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words), np.uint64, len(words)
    )
    runs = hashes[: max(1, hashes.size - _RUN + 1)]
    for offset in range(1, min(_RUN, hashes.size)):
        runs = fold_in(runs, hashes[offset : offset + runs.size])
    minima = np.full(NUM_HASHES, np.iinfo(np.uint32).max, dtype=np.uint32)
    for first in range(0, runs.size, _RUNS_AT_ONCE):
        # Multiply-shift hashing: the upper half of a product with a random odd number.
        products = runs[None, first : first + _RUNS_AT_ONCE] * _MULTIPLIERS[:, None]
        block = (products >> np.uint64(32)).astype(np.uint32)
        np.minimum(minima, block.min(axis=1), out=minima)
    return minima


def find_near(
    load: Callable[[int], NDArray[np.uint32]],
    is_dropped: list[NDArray[np.bool_]],
    similarity: float,
) -> list[NDArray[np.bool_]]:
    """For each file's documents: True where an earlier document is nearly the same.

    `load(index)` gives the signatures of a file's documents, best memory-mapped; documents in
    `is_dropped` take no part. Similar documents form clusters, and the first of each stays. In each
    band a document is compared with the first that it meets there, so that a million documents
    from one template take linear time. Needs about 40 bytes of memory a document.
    """
    counts = [flags.size for flags in is_dropped]
    edges = np.cumsum([0, *counts])
    parents = np.arange(edges[-1])
    active = np.flatnonzero(~np.concatenate(is_dropped))
    for band in range(_NUM_BANDS):
        for first, other in _meetings(load, counts, active, band):
            if _root(parents, first) == _root(parents, other):
                continue
            agreement = _row(load, edges, first) == _row(load, edges, other)
            if agreement.mean() >= similarity:
                low, high = sorted((_root(parents, first), _root(parents, other)))
                parents[high] = low
    is_near = np.zeros(edges[-1], dtype=np.bool_)
    is_near[active] = [_root(parents, each) != each for each in active.tolist()]
    return np.split(is_near, edges[1:-1])


def _meetings(
    load: Callable[[int], NDArray[np.uint32]],
    counts: list[int],
    active: NDArray[np.int64],
    band: int,
) -> list[tuple[int, int]]:
    """Pairs that agree in a band: each document with the first one it agrees with."""
    width = NUM_HASHES // _NUM_BANDS
    keys = []
    for index in range(len(counts)):
        columns = np.asarray(load(index)[:, band * width : (band + 1) * width], np.uint64)
        hashed = np.zeros(len(columns), dtype=np.uint64)
        for column in columns.T:
            hashed = fold_in(hashed, column)
        keys.append(hashed)
    flat = np.concatenate(keys)[active]
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    firsts = np.repeat(order[begins], np.diff(np.append(begins, order.size)))
    meets = firsts != order
    return list(zip(active[firsts[meets]].tolist(), active[order[meets]].tolist(), strict=True))


def _row(
    load: Callable[[int], NDArray[np.uint32]], edges: NDArray[np.int64], document: int
) -> NDArray[np.uint32]:
    file = int(np.searchsorted(edges, document, side="right")) - 1
    row: NDArray[np.uint32] = load(file)[document - edges[file]]
    return row


def _root(parents: NDArray[np.int64], document: int) -> int:
    """First document of the cluster; paths are halved on the way."""
    while parents[document] != document:
        parents[document] = parents[parents[document]]
        document = int(parents[document])
    return document


def heldout_draws(groups: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each document; the lowest are held out."""
    return uniform(random_bits(seed, "held-out", groups.astype(np.uint64)))


def heldout_threshold(
    groups_by_file: Iterable[NDArray[np.uint64]], fraction: float, seed: int
) -> float:
    """Documents that draw at most this are held out: about `fraction` of them.

    Where these would be too few, or too few would be left to learn from, it is two, so that
    sentences of one can be paired with another's. Raises UserError where there are fewer than
    four in all.
    """
    lowest, highest = np.empty(0), np.empty(0)
    for groups in groups_by_file:
        draws = heldout_draws(groups, seed)
        lowest = np.unique(np.concatenate([lowest, draws]))[:FEWEST_DOCUMENTS]
        highest = np.unique(np.concatenate([highest, draws]))[-2:]
    if lowest.size < FEWEST_DOCUMENTS:
        raise too_few_documents(lowest.size)
    least = float(lowest[1])
    return fraction if least <= fraction < highest[0] else least


def too_few_documents(count: int, why: str = "") -> UserError:
    """What to say of a corpus with `count` documents, and `why` there are not more."""
    return UserError(
        f"a corpus needs at least {FEWEST_DOCUMENTS} documents, two to train on and two to hold "
        f"out, but has {count or 'none'}{why}; give more text, or {_FINER}"
    )


def check_division(statistics: Mapping[str, Mapping[str, Any]], fraction: float) -> None:
    """Raise UserError where far more of the text is held out than `fraction` asks for.

    That is so where documents are few or long: most often, what was meant is another layout.
    """
    train, heldout = statistics["train"], statistics["heldout"]
    share = heldout["bytes"] / (train["bytes"] + heldout["bytes"])
    if share > fraction + _MORE_THAN_ASKED:
        count = train["documents"] + heldout["documents"]
        raise UserError(
            f"the corpus has {count:,} documents, of which {heldout['documents']:,} with "
            f"{share:.0%} of the text would be held out instead of {fraction:.0%}; {_FINER}, give "
            "more text, or set corpus.heldout_fraction to the share that you want"
        )


def copies(groups: NDArray[np.uint64], weight: float, seed: int) -> NDArray[np.int64]:
    """How often each document of a source with `weight` enters the corpus, on average `weight`."""
    draws = uniform(random_bits(seed, "copies", groups.astype(np.uint64)))
    return np.floor(weight + draws).astype(np.int64)
