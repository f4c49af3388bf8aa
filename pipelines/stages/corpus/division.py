"""Which documents are held out, and how often each enters the corpus.

Both are drawn from a document's own content, before anything is learned: adding or removing other
documents moves none from one side to the other. The pieces of one document stay together.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bert_core.randomness import random_bits, uniform
from pipelines.config.errors import UserError
from pipelines.stages.corpus.settings import FEWEST_DOCUMENTS

_MORE_THAN_ASKED: Final = 0.2  # of the text
_FINER: Final = (
    "set a finer layout of the text (--layout, or layout of the source): blank_line, in which each "
    "block between blank lines is a document, line, or page for PDF files"
)


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
