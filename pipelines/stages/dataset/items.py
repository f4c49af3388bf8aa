"""Labelled items of a family: records checked one by one, divided, and named by what they are."""

import hashlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from io import BufferedIOBase
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, cast

import numpy as np

from bert_core.randomness import random_bits, uniform
from pipelines.errors import UserError
from pipelines.io.files import open_binary, reached, require_answer
from pipelines.io.hugging_face import commit_of, name_of
from pipelines.io.tables import delimited_by
from pipelines.stages.dataset.cells import check_cells, check_texts
from pipelines.stages.dataset.records import Source, file_format, records_of_file, records_of_split
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledDataset,
    LabelledFile,
)
from pipelines.tasks import BadItemError, Item, Items, TaskFamily, family

_NOTES_SHOWN: Final = 5
_USUAL_ITEMS: Final = 8  # of a label
_ITEMS_INSPECTED: Final = 5000  # of a large file or split, before a run begins


logger = logging.getLogger(__name__)


class Grouped(NamedTuple):
    """An item, and what it belongs to; and where it stands in its file."""

    group: str
    item: Item
    place: str = ""


class Parts(NamedTuple):
    """Labelled items, divided."""

    train: list[Item]
    heldout: list[Item]
    # What each training item belongs to, if a column says it; as numbers, since the names in such
    # a column are often those of people.
    train_groups: list[int] | None = None

    @property
    def both(self) -> tuple[list[Item], list[Item]]:
        """The items alone."""
        return self.train, self.heldout


def read_labelled(
    part: str, family: TaskFamily, source: Source, *, limit: int | None = None
) -> list[Grouped]:
    """The items of a part of `source` in their order.

    `part` is the path of a file, or the name of a dataset's split, of which at most `limit` records
    are read. Raises UserError, naming the place, for a record that cannot be read or learned from.
    """
    if isinstance(source, LabelledDataset):
        path = f"{source.dataset}, split {part}"
        records = records_of_split(source, part, family.form)
    else:
        path = part
        records = records_of_file(part, family.form, source)
    items: list[Grouped] = []
    notes: list[str] = []
    for record in islice(records, limit):
        try:
            check_cells(record.fields, family)
            item = family.item(record.fields)
        except BadItemError as error:
            raise UserError(
                f"every item of {path} must {error.must}, found {error.found} in {record.place}; "
                "correct or remove it"
            ) from error
        if family.form == "words":
            notes += [f"{record.place}: {note}" for note in item.pop("notes", ())]
        items.append(Grouped(record.group or family.group(item), item, record.place))
    if notes:
        logger.warning(
            "%s labels of %s are not taken as they are: %s%s", f"{len(notes):,}", path,
            "; ".join(notes[:_NOTES_SHOWN]), "; …" if len(notes) > _NOTES_SHOWN else "",
        )  # fmt: skip
    if not items:
        raise UserError(f"{path} holds no labelled items")
    if family.form != "rows":
        check_texts([each.item.get("text") for each in items], path)
        if len(items) != limit:  # there may be more
            _note_single_labels(items, path)
    return items


def _note_single_labels(items: Sequence[Grouped], path: str) -> None:
    """Warn of labels that one item of many has: often it is no item."""
    every = (each.item.get("label") for each in items)
    labels = Counter(label for label in every if isinstance(label, str))
    single = [label for label, count in labels.items() if count == 1]
    if single and len(items) >= _USUAL_ITEMS * len(labels):
        place = next(each.place for each in items if each.item.get("label") == single[0])
        logger.warning(
            "only one item of %s has the label %r (%s); remove it if it is a name or a slip",
            path, single[0], place,
        )  # fmt: skip


def read_parts(source: Source, family: TaskFamily) -> Parts:
    """The items of a source as it divides them, or with a share of them held out."""
    return _in_parts(_read(source, family), source, family)


def _read(source: Source, family: TaskFamily, limit: int | None = None) -> list[list[Grouped]]:
    """The items of a source, and those of its own held-out part if it has one."""
    every = [read_labelled(part, family, source, limit=limit) for part in source.parts if part]
    are_pairs = [any(each.item.get("second_text") for each in items) for items in every]
    if len({*are_pairs}) > 1:
        train, heldout = source.parts
        single, pairs = (heldout, train) if are_pairs[0] else (train, heldout)
        raise UserError(
            f"{pairs} holds pairs of texts and {single} single ones; give both the same columns"
        )
    return every


def _in_parts(every: Sequence[list[Grouped]], source: Source, family: TaskFamily) -> Parts:
    items, *others = every
    are_numbered = bool(source.group_column)
    if not others:
        both = divided(items, family, source.heldout_fraction, source.seed)
        return _parts(*both, are_numbered=are_numbered)
    parts = _parts(items, others[0], are_numbered=are_numbered)
    _check_not_all_trained_on(items, others[0], source)
    if are_numbered:
        _note_shared_groups(items, others[0], source)
    return parts


def _check_not_all_trained_on(
    train: Sequence[Grouped], heldout: Sequence[Grouped], source: Source
) -> None:
    if {repr(each.item) for each in heldout} <= {repr(each.item) for each in train}:
        raise UserError(
            f"every item of {source.parts[1]} is trained on; leave it out, and a share of them is "
            "held out"
        )


def _note_shared_groups(
    train: Sequence[Grouped], heldout: Sequence[Grouped], source: Source
) -> None:
    """Warn of held-out items whose group is trained on: their score may be too high."""
    trained = {folded(each.group) for each in train}
    num_shared = sum(folded(each.group) in trained for each in heldout)
    if num_shared:
        logger.warning(
            "%s of %s items of %s have a %s that is trained on",
            f"{num_shared:,}", f"{len(heldout):,}", source.parts[1], source.group_column,
        )  # fmt: skip


def _parts(train: Sequence[Grouped], heldout: Sequence[Grouped], *, are_numbered: bool) -> Parts:
    numbers: dict[str, int] = {}
    groups = [numbers.setdefault(folded(each.group), len(numbers)) for each in train]
    return Parts(
        [each.item for each in train],
        [each.item for each in heldout],
        groups if are_numbered else None,
    )


def with_labels(parts: Parts, family: TaskFamily) -> tuple[Items, Items]:
    """Both parts with their labels; raises UserError where a model could not be trained on them."""
    if not parts.train:
        raise UserError(
            f"all {len(parts.heldout)} items belong together and are held out; give others, or set "
            "another seed of the split"
        )
    labels = family.labels(parts.train, parts.heldout)
    if not parts.heldout:
        raise UserError(
            f"none of the {len(parts.train)} items is held out to evaluate on; raise "
            "heldout_fraction or give more items"
        )
    return Items(parts.train, labels), Items(parts.heldout, labels)


def divided(
    items: Sequence[Grouped], family: TaskFamily, heldout_fraction: float, seed: int
) -> tuple[list[Grouped], list[Grouped]]:
    """The items to train on, and those held out: by their group, so that none is on both sides.

    A class that would be held out alone is trained on: its first group moves. Of groups that a
    column names, held-out items with all texts of one of the other part are left out, with a
    warning: to join all groups that say "ok" would leave nothing to hold out. Raises UserError
    where most are.
    """
    groups = joined_groups(items)
    draws = _draws(groups, seed, "split")
    is_heldout: list[bool] = (draws < heldout_fraction).tolist()
    known = family.classes_of([
        each.item for each, held_out in zip(items, is_heldout, strict=True) if not held_out
    ])  # fmt: skip
    for place, each in enumerate(items):
        if is_heldout[place] and family.classes_of([each.item]) - known:
            for other, group in enumerate(groups):
                if group == groups[place]:
                    is_heldout[other] = False
                    known |= family.classes_of([items[other].item])
    parts: tuple[list[Grouped], list[Grouped]] = ([], [])
    for each, held_out in zip(items, is_heldout, strict=True):
        parts[int(held_out)].append(each)
    train, heldout = parts
    known_content = _content_of((each.item for each in train), family)
    others = [each for each in heldout if folded(family.content(each.item)) not in known_content]
    num_left_out = len(heldout) - len(others)
    if num_left_out > len(others):
        raise UserError(
            f"{num_left_out:,} of {len(heldout):,} items to hold out have texts that are trained "
            "on in another group; correct the groups, or leave group_column out: equal texts stay "
            "together then"
        )
    if num_left_out:
        logger.warning(
            "%s of %s held-out items are left out: their texts are trained on in another group",
            f"{num_left_out:,}", f"{len(heldout):,}",
        )  # fmt: skip
    return train, others


def _content_of(items: Iterable[Item], family: TaskFamily) -> set[str]:
    """What a model reads of the items, without what `folded` leaves out."""
    return {folded(family.content(item)) for item in items}


def _draws(groups: Sequence[str], seed: int, stream: str) -> np.ndarray:
    """[N] a number of [0, 1) for each group, the same wherever it stands."""
    digests = b"".join(hashlib.sha256(group.encode()).digest()[:8] for group in groups)
    return uniform(random_bits(seed, stream, np.frombuffer(digests, dtype="<u8")))


def validation_parts(
    items: Items, family: TaskFamily, count: int, seed: int, numbers: Sequence[int] | None = None
) -> tuple[Items, Items]:
    """The training items that are learned from, and about `count` others, at most half of all.

    They are of groups of their own: those that `numbers` name, else as far as the family knows
    them. A group that would take twice as many items stays among those that are learned from, and
    so does a class that no other item has.
    """
    if not count:
        return items, Items([], items.labels)
    names = map(family.group, items.rows) if numbers is None else map(str, numbers)
    groups = joined_groups([Grouped(*each) for each in zip(names, items.rows, strict=True)])
    sizes, total, most = Counter(groups), 0, min(2 * count, len(groups) / 2)
    ordered, validated_groups = sorted(sizes), set[str]()
    for place in np.argsort(_draws(ordered, seed, "validation"), kind="stable"):
        group = ordered[place]
        if total < count and total + sizes[group] <= most:
            validated_groups.add(group)
            total += sizes[group]
    pairs = list(zip(items.rows, groups, strict=True))
    known = family.classes_of([item for item, group in pairs if group not in validated_groups])
    for item, group in pairs:
        if group in validated_groups and family.classes_of([item]) - known:
            validated_groups.remove(group)
            known |= family.classes_of([item])
    learned = _content_of((item for item, group in pairs if group not in validated_groups), family)
    # A text of several groups that a column names is learned wherever it stands.
    are_validated = [
        group in validated_groups and folded(family.content(item)) not in learned
        for item, group in pairs
    ]
    parts: tuple[list[Item], list[Item]] = ([], [])
    for item, is_validated in zip(items.rows, are_validated, strict=True):
        parts[int(is_validated)].append(item)
    return Items(parts[0], items.labels), Items(parts[1], items.labels)


def places_in_train(
    train: Sequence[Item], heldout: Sequence[Item], family: TaskFamily, *, by_content: bool = False
) -> list[int]:
    """Places of the held-out items that belong to what is trained on, as `divided` groups them.

    `by_content`: only those of which the model reads the same in training, since a column says
    what else belongs together.
    """
    group_of = family.content if by_content else family.group
    groups = joined_groups([Grouped(group_of(item), item) for item in (*train, *heldout)])
    trained = set(groups[: len(train)])
    return [place for place, group in enumerate(groups[len(train) :]) if group in trained]


def joined_groups(items: Sequence[Grouped]) -> list[str]:
    """What each item belongs to: texts that `folded` makes equal are one.

    So are the groups of pairs of the same two texts, in either order.
    """
    joined: dict[str, str] = {}  # a group, and an earlier one that it belongs to

    def first_of(group: str) -> str:
        while group in joined:
            group = joined[group]
        return group

    groups = [folded(each.group) for each in items]
    of_pair: dict[tuple[str, ...], str] = {}
    for each, group in zip(items, groups, strict=True):
        if each.item.get("second_text"):
            pair = tuple(sorted((folded(each.item["text"]), folded(each.item["second_text"]))))
            ours, theirs = first_of(group), first_of(of_pair.setdefault(pair, group))
            if ours != theirs:
                joined[ours] = theirs
    return [first_of(group) for group in groups]


def folded(text: str) -> str:
    """The text without what case, white space and the spelling of accents in Unicode tell apart."""
    return " ".join(unicodedata.normalize("NFC", text.casefold()).split())


def resolved(source: LabelledDataset) -> LabelledDataset:
    """The same dataset at one commit; raises UserError where it is not found."""
    if source.heldout_split and (Path(source.dataset) / "state.json").is_file():
        raise UserError(
            f"{source.dataset} holds a single split; leave out dataset.source.heldout_split: "
            "a share of the items is held out"
        )
    return source.model_copy(update={"revision": commit_of(source.dataset, source.revision)})


def inputs_of(source: Source, family: TaskFamily) -> dict[str, str]:
    """What decides the records of a source: its files' bytes and how they are parsed, or a commit.

    Raises UserError where a file is not there, not readable or of an unknown format.
    """
    if isinstance(source, LabelledDataset):
        return {"dataset": name_of(source.dataset, source.revision)[0]}
    inputs = _name_of_file(source.path, family, source)
    if source.heldout_path:
        heldout = _name_of_file(source.heldout_path, family, source)
        inputs |= {f"heldout_{name}": value for name, value in heldout.items()}
    return inputs


def _name_of_file(path: str, family: TaskFamily, source: LabelledFile) -> dict[str, str]:
    parsing = file_format(path, family.form, source.delimiter)
    if parsing == "delimited":
        parsing = delimited_by(path, source)
    with open_binary(path) as stream:
        digest = hashlib.file_digest(cast(BufferedIOBase, stream), "sha256").hexdigest()
    return {"file": digest, "format": parsing}


def check_inputs(
    settings: DatasetSettings, corpus_labels: frozenset[str] = frozenset()
) -> TaskFamily:
    """The family; UserError where the labelled items cannot be read, or give nothing to learn.

    Of many items the first ones are looked at. `corpus_labels` are those that the corpus's
    documents will get, where that is known.
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
        _check_items(resolved(source), task)
    elif isinstance(source, LabelledFile):
        paths = [source.path, *filter(None, [source.heldout_path])]
        for path in paths:
            file_format(path, task.form, source.delimiter)
            require_answer(path)
        with reached(*paths):
            _check_items(source, task)
    return task


def _check_items(source: Source, task: TaskFamily) -> None:
    """Look at the first items; where these are all, check that a model can learn from them."""
    every = _read(source, task, _ITEMS_INSPECTED)
    if len(every) > 1 and len(every[1]) < _ITEMS_INSPECTED:
        _check_not_all_trained_on(every[0], every[1], source)
    if all(len(items) < _ITEMS_INSPECTED for items in every):
        with_labels(_in_parts(every, source, task), task)
