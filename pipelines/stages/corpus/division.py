"""Which documents are held out, and how often each enters the corpus.

Both are drawn from a document's own content, before anything is learned: adding or removing other
documents moves none from one side to the other. The pieces of one document stay together.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bert_core.randomness import random_bits, uniform
from pipelines.core.errors import UserError


def heldout_draws(groups: NDArray[np.uint64], seed: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each document; the lowest are held out."""
    return uniform(random_bits(seed, "held-out", groups.astype(np.uint64)))


def heldout_threshold(
    groups_by_file: Iterable[NDArray[np.uint64]], fraction: float, seed: int
) -> float:
    """Documents that draw at most this are held out: about `fraction` of them.

    Where these would be too few it is two (so that sentences of one can be paired with another's),
    or one of fewer than four documents. Raises UserError where there are fewer than two.
    """
    lowest, highest = np.empty(0), -1.0
    for groups in groups_by_file:
        draws = heldout_draws(groups, seed)
        lowest = np.unique(np.concatenate([lowest, draws]))[:4]
        highest = max(highest, float(draws.max(initial=-1.0)))
    if lowest.size < 2:
        count = "one" if lowest.size else "none"
        raise UserError(
            "a corpus must hold at least two documents, so that one can be held out, found "
            f"{count}; give more text, or a layout in which a paragraph or a line is a document"
        )
    least = float(lowest[1] if lowest.size == 4 else lowest[0])
    return fraction if least <= fraction < highest else least


def copies(groups: NDArray[np.uint64], weight: float, seed: int) -> NDArray[np.int64]:
    """How often each document of a source with `weight` enters the corpus, on average `weight`."""
    draws = uniform(random_bits(seed, "copies", groups.astype(np.uint64)))
    return np.floor(weight + draws).astype(np.int64)
