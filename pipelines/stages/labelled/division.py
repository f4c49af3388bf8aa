"""Which labelled items are held out."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_core.randomness import random_bits, uniform
from pipelines.core.errors import UserError
from pipelines.stages.labelled.files import (
    Grouped,
    LeftOut,
    read_labelled_file,
    read_labelled_split,
)
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Item, Items, TaskFamily


class Parts(NamedTuple):
    """Labelled items, divided."""

    train: list[Item]
    heldout: list[Item]


def divide(items: Sequence[Grouped], heldout_fraction: float, seed: int) -> Parts:
    """Hold items out by the group they belong to, so that none stands on both sides."""
    digests = b"".join(hashlib.sha256(each.group.encode()).digest()[:8] for each in items)
    draws = uniform(random_bits(seed, "split", np.frombuffer(digests, dtype="<u8")))
    is_heldout = (draws < heldout_fraction).tolist()
    parts = Parts([], [])
    for each, held_out in zip(items, is_heldout, strict=True):
        parts[int(held_out)].append(each.item)
    return parts


def parts_of_files(settings: LabelledFile, family: TaskFamily, left_out: LeftOut) -> Parts:
    """The items of the files, divided by the rule or as they come."""
    items = read_labelled_file(settings.path, family, settings, left_out)
    if not settings.heldout_path:
        return divide(items, settings.heldout_fraction, settings.seed)
    heldout = read_labelled_file(settings.heldout_path, family, settings, left_out)
    return Parts([each.item for each in items], [each.item for each in heldout])


def parts_of_dataset(
    settings: LabelledDataset, family: TaskFamily, left_out: LeftOut, num_rows: int | None = None
) -> Parts:
    """The items of a data set's splits, divided by the rule or as they come."""
    items = read_labelled_split(settings.split, family, settings, left_out, num_rows=num_rows)
    if not settings.heldout_split:
        return divide(items, settings.heldout_fraction, settings.seed)
    heldout = read_labelled_split(
        settings.heldout_split, family, settings, left_out, num_rows=num_rows
    )
    return Parts([each.item for each in items], [each.item for each in heldout])


def checked(parts: Parts, family: TaskFamily) -> tuple[Items, Items]:
    """Both parts with their labels; raises UserError where a model could not be trained on them."""
    labels = family.labels(parts.train, parts.heldout)
    if not parts.heldout:
        raise UserError(
            f"some items must be held out to evaluate on, found none of {len(parts.train)}; raise "
            "heldout_fraction or give more items"
        )
    return Items(parts.train, labels), Items(parts.heldout, labels)
