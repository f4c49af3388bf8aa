"""Which documents are held out, and how often each enters the corpus.

Both are drawn from a document's own content, before anything is learned: adding or removing other
documents moves none from one side to the other. The pieces of one document stay together.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from bert_core.randomness import random_bits, uniform
from pipelines.config.errors import UserError
from pipelines.stages.corpus.settings import FEWEST_DOCUMENTS


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
        f"out, but has {count or 'none'}{why}; give more text, or set a finer layout such as "
        "blank_line, in which each block between blank lines is a document"
    )


def copies(groups: NDArray[np.uint64], weight: float, seed: int) -> NDArray[np.int64]:
    """How often each document of a source with `weight` enters the corpus, on average `weight`."""
    draws = uniform(random_bits(seed, "copies", groups.astype(np.uint64)))
    return np.floor(weight + draws).astype(np.int64)
