"""Labelled items of a family: read, checked one by one, refused or left out, and divided.

What a recipe names as such items is inspected before a run begins.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from fsspec.core import url_to_fs

from bert_core.randomness import random_bits, uniform
from pipelines.config.errors import UserError
from pipelines.io.files import compression_of, reached, require_answer
from pipelines.io.records import BadRow, opened
from pipelines.io.text import Tally
from pipelines.stages.dataset.conll import conll_records
from pipelines.stages.dataset.hugging_face import num_bytes_of, resolved, rows_of_split
from pipelines.stages.dataset.records import Record, format_of, squad_records
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledDataset,
    LabelledFile,
)
from pipelines.stages.dataset.tables import rows_of_file, table_records
from pipelines.tasks import BadItemError, Item, Items, TaskFamily, family

_SKIP = ", or leave such items out with dataset.source.bad_items=skip"
_MAX_PLACES = 20  # of items that were left out or occur twice, which are listed


class Grouped(NamedTuple):
    """An item, and what it belongs to."""

    group: str
    item: Item


class Parts(NamedTuple):
    """Labelled items, divided."""

    train: list[Item]
    heldout: list[Item]


@dataclass(slots=True)
class LeftOut:
    """Items that cannot be learned from: how many for which reason, and where some are.

    Equal items are counted too, but kept: a person's own parts may hold them on purpose.
    """

    tally: Tally = field(default_factory=Tally)
    places: list[str] = field(default_factory=list)
    num_duplicates: int = 0
    duplicates: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # which of each table were taken for what

    def add(self, must: str, place: str) -> None:
        self.tally.dropped[f"items that do not {must}"] += 1
        if len(self.places) < _MAX_PLACES:
            self.places.append(place)

    def add_duplicate(self, place: str, of: str) -> None:
        self.num_duplicates += 1
        if len(self.duplicates) < _MAX_PLACES:
            self.duplicates.append(f"{place}, as {of}")

    def to_json(self) -> dict[str, Any]:
        """Counts, and the places where there are any."""
        columns = list(dict.fromkeys(self.columns))  # mostly the same in both parts
        lists = {"left_out": self.places, "duplicate_items": self.duplicates, "columns": columns}
        return {
            **self.tally.to_json(),
            "duplicates": self.num_duplicates,
            **{name: entries for name, entries in lists.items() if entries},
        }


def read_labelled(
    part: str,
    family: TaskFamily,
    source: LabelledFile | LabelledDataset,
    left_out: LeftOut,
    *,
    limit: int | None = None,
) -> list[Grouped]:
    """The items of a part of `source` in their order; what is mended or left out is counted.

    `part` is the path of a file, or the name of a dataset's split. `limit` is the number of bytes
    to read of a file, if its format allows, or of rows of a split. Raises UserError, naming the
    place, for a record that cannot be read, and by the rule of `source.bad_items` for one that
    cannot be learned from.
    """
    if isinstance(source, LabelledDataset):
        path = f"{source.dataset}, split {part}"
        rows = rows_of_split(source, part, family.form, limit)
        say = left_out.columns.append
        records = table_records(rows, family.form, source, path, left_out.tally, say)
    else:
        path = part
        records = _file_records(path, family, source, left_out, limit)
    found: list[Grouped] = []
    places: dict[str, str] = {}  # where each item stood first
    for record in records:
        try:
            item = family.item(record.fields)
        except BadItemError as error:
            if source.bad_items == "refuse":
                raise UserError(
                    f"every item of {path} must {error.must}, found {error.found} in "
                    f"{record.place}; correct or remove it{_SKIP}"
                ) from error
            left_out.add(error.must, f"{record.place} of {path}")
            continue
        first = places.setdefault(repr(item), record.place)
        if first != record.place:
            left_out.add_duplicate(f"{record.place} of {path}", first)
        found.append(Grouped(record.group or family.group(item), item))
    if not found:
        raise UserError(f"{path} holds no labelled items")
    return found


def read_parts(
    source: LabelledFile | LabelledDataset,
    family: TaskFamily,
    left_out: LeftOut,
    *,
    limit: int | None = None,
) -> Parts:
    """The items of a source as it divides them, or with a share of them held out."""
    train, heldout = source.parts
    items = read_labelled(train, family, source, left_out, limit=limit)
    if not heldout:
        return _divide(items, source.heldout_fraction, source.seed)
    others = read_labelled(heldout, family, source, left_out, limit=limit)
    return Parts([each.item for each in items], [each.item for each in others])


def with_labels(parts: Parts, family: TaskFamily) -> tuple[Items, Items]:
    """Both parts with their labels; raises UserError where a model could not be trained on them."""
    labels = family.labels(parts.train, parts.heldout)
    if not parts.heldout:
        raise UserError(
            f"none of the {len(parts.train)} items is held out to evaluate on; raise "
            "heldout_fraction or give more items"
        )
    return Items(parts.train, labels), Items(parts.heldout, labels)


def _divide(items: Sequence[Grouped], heldout_fraction: float, seed: int) -> Parts:
    """Hold items out by the group they belong to, so that none is on both sides."""
    digests = b"".join(hashlib.sha256(each.group.encode()).digest()[:8] for each in items)
    draws = uniform(random_bits(seed, "split", np.frombuffer(digests, dtype="<u8")))
    is_heldout = (draws < heldout_fraction).tolist()
    parts = Parts([], [])
    for each, held_out in zip(items, is_heldout, strict=True):
        parts[int(held_out)].append(each.item)
    return parts


def _file_records(
    path: str, family: TaskFamily, source: LabelledFile, left_out: LeftOut, head_bytes: int | None
) -> Iterator[Record]:
    def refuse(row: BadRow) -> None:
        """By the rule for items that cannot be learned from."""
        if source.bad_items == "refuse":
            raise row.refusal(path, advice=_SKIP)
        left_out.add(f"count as records ({row.reason})", f"line {row.line:,} of {path}")

    file_format = format_of(path, family.form)
    if file_format == "conll":
        return conll_records(path, source, left_out.tally, refuse, head_bytes)
    if file_format == "squad":
        return squad_records(path)
    rows = rows_of_file(path, family.form, refuse, head_bytes)
    say = left_out.columns.append
    return table_records(rows, family.form, source, path, left_out.tally, say)


_BYTES_INSPECTED: Final = 4 * 2**20  # read in half a second
_ROWS_INSPECTED: Final = 1000  # of a large dataset
_EXPANSION: Final = 8  # most that text grows by, about, when it is decompressed
_READ_WHOLE: Final = ("squad",)  # formats without lines


def check_inputs(
    settings: DatasetSettings, corpus_labels: frozenset[str] = frozenset()
) -> TaskFamily:
    """The family; UserError where the labelled items cannot be read, or give nothing to learn.

    Of large files the head is looked at. `corpus_labels` are those that the corpus's documents
    will get, where that is known.
    """
    source = settings.source
    if isinstance(source, CorpusSourceLabels) and len(corpus_labels) == 1:
        raise UserError(
            "a classifier of the corpus's sources needs at least two of them to tell apart, found "
            f"{min(corpus_labels)!r} alone; give labelled texts (--labels), or set "
            "dataset.source to {kind: none}"
        )
    task = family(settings.family)
    if isinstance(source, LabelledDataset):
        _check_dataset(source, task)
    elif isinstance(source, LabelledFile):
        _check_files(source, task)
    return task


def _check_files(source: LabelledFile, task: TaskFamily) -> None:
    paths = [source.path, *filter(None, [source.heldout_path])]
    for path in paths:
        format_of(path, task.form)
        require_answer(path)
    with reached(*paths):
        large = [path for path in paths if _is_large(path)]
        for path in large:
            head = None if format_of(path, task.form) in _READ_WHOLE else _BYTES_INSPECTED
            read_labelled(path, task, source, LeftOut(), limit=head)
        if large:
            return
        parts = read_parts(source, task, LeftOut())
    with_labels(parts, task)


def _check_dataset(source: LabelledDataset, task: TaskFamily) -> None:
    source = resolved(source)
    size = num_bytes_of(source)
    if size is None or size > _BYTES_INSPECTED:
        read_parts(source, task, LeftOut(), limit=_ROWS_INSPECTED)
    else:
        with_labels(read_parts(source, task, LeftOut()), task)


def _is_large(path: str) -> bool:
    """Whether only its head is looked at; raises UserError where it cannot be opened."""
    with opened(path):
        pass
    filesystem, plain = url_to_fs(path)
    size = filesystem.info(plain)["size"] or 0
    limit = _BYTES_INSPECTED // (_EXPANSION if compression_of(path) else 1)
    return bool(size > limit)
