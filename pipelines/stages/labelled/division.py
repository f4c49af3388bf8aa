"""Which labelled texts are held out, and what a classifier needs of both parts."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_core.randomness import random_bits, uniform
from pipelines.core.errors import UserError
from pipelines.stages.labelled.files import LabelledText


class Parts(NamedTuple):
    """Labelled texts, divided."""

    train: list[LabelledText]
    heldout: list[LabelledText]


def divide(items: Sequence[LabelledText], heldout_fraction: float, seed: int) -> Parts:
    """Hold texts out by what they say, so that equal texts never stand on both sides."""
    digests = b"".join(hashlib.sha256(item.text.encode()).digest()[:8] for item in items)
    draws = uniform(random_bits(seed, "split", np.frombuffer(digests, dtype="<u8")))
    is_heldout = (draws < heldout_fraction).tolist()
    parts = Parts([], [])
    for item, held_out in zip(items, is_heldout, strict=True):
        parts[int(held_out)].append(item)
    return parts


def check_parts(parts: Parts) -> list[str]:
    """The labels, sorted; raises UserError where a classifier could not be trained or measured."""
    train, heldout = parts
    labels = sorted({item.label for item in train})
    if len(labels) < 2:
        raise UserError(
            f"a classifier needs at least two labels to tell apart, found {labels}; "
            "check the label column"
        )
    if len(labels) > len(train) // 2:
        raise UserError(
            f"a label must come with several texts to learn from, found {len(labels)} labels on "
            f"{len(train)} texts; check which column holds the label"
        )
    unknown = sorted({item.label for item in heldout} - set(labels))
    if unknown:
        raise UserError(
            f"every label must occur in the training part, but {unknown[:5]} are only among the "
            "held-out texts; give these labels more texts or another split seed"
        )
    if not heldout:
        raise UserError(
            f"some texts must be held out to evaluate on, found none of {len(train)}; raise "
            "heldout_fraction or give more texts"
        )
    return labels
