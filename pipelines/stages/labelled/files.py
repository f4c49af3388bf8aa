"""Labelled records as items of a family: read, checked one by one, refused or left out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.records import BadRow
from pipelines.core.reading.text import Tally
from pipelines.stages.labelled.conll import conll_records
from pipelines.stages.labelled.hugging_face import rows_of_split
from pipelines.stages.labelled.records import Record, format_of
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.stages.labelled.squad import squad_records
from pipelines.stages.labelled.tables import rows_of_file, table_records
from pipelines.tasks import BadItemError, Item, TaskFamily

_SKIP = ", or leave such items out with labelled.source.bad_items=skip"
_PLACES = 20  # of items that were left out, which are told


class Grouped(NamedTuple):
    """An item, and what it belongs to."""

    group: str
    item: Item


@dataclass(slots=True)
class LeftOut:
    """Items that cannot be learned from: how many for which reason, and where some stand.

    Equal items are counted likewise, and stay: each part of one's own may hold them on purpose.
    """

    tally: Tally = field(default_factory=Tally)
    places: list[str] = field(default_factory=list)
    num_duplicates: int = 0
    duplicates: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)  # which of each table were taken for what

    def add(self, must: str, place: str) -> None:
        self.tally.dropped[f"items that do not {must}"] += 1
        if len(self.places) < _PLACES:
            self.places.append(place)

    def add_duplicate(self, place: str, of: str) -> None:
        self.num_duplicates += 1
        if len(self.duplicates) < _PLACES:
            self.duplicates.append(f"{place}, as {of}")

    def to_json(self) -> dict[str, Any]:
        """Counts, and the places where there are any."""
        told: dict[str, Any] = {**self.tally.to_json(), "duplicates": self.num_duplicates}
        if self.places:
            told["left_out"] = self.places
        if self.duplicates:
            told["duplicate_items"] = self.duplicates
        if self.columns:
            told["columns"] = list(dict.fromkeys(self.columns))  # mostly the same in both parts
        return told


def read_labelled_file(
    path: str,
    family: TaskFamily,
    settings: LabelledFile,
    left_out: LeftOut,
    *,
    head_bytes: int | None = None,
) -> list[Grouped]:
    """The items of a file in their order; what is mended or left out is counted.

    With `head_bytes` only that much of the file is looked at where its format allows. Raises
    UserError, saying where, for a record that cannot be read, and by the rule of
    `settings.bad_items` for one that cannot be learned from.
    """
    records = _records(path, family, settings, left_out, head_bytes)
    return _items(records, path, family, settings, left_out)


def read_labelled_split(
    split: str,
    family: TaskFamily,
    settings: LabelledDataset,
    left_out: LeftOut,
    *,
    num_rows: int | None = None,
) -> list[Grouped]:
    """The items of a data set's split, likewise; with `num_rows` the first of them."""
    path = f"{settings.dataset}, split {split}"
    rows = rows_of_split(settings, split, family.form, num_rows)
    say = left_out.columns.append
    records = table_records(rows, family.form, settings, path, left_out.tally, say)
    return _items(records, path, family, settings, left_out)


def _items(
    records: Iterator[Record],
    path: str,
    family: TaskFamily,
    settings: LabelledFile | LabelledDataset,
    left_out: LeftOut,
) -> list[Grouped]:
    found: list[Grouped] = []
    places: dict[str, str] = {}  # where each item stood first
    for record in records:
        try:
            item = family.item(record.fields)
        except BadItemError as error:
            if settings.bad_items == "refuse":
                raise UserError(
                    f"every item of {path} must {error.must}, found {error.found} in "
                    f"{record.place}; mend or remove it{_SKIP}"
                ) from error
            left_out.add(error.must, f"{record.place} of {path}")
            continue
        first = places.setdefault(repr(item), record.place)
        if first != record.place:
            left_out.add_duplicate(f"{record.place} of {path}", first)
        found.append(Grouped(record.group or family.group(item), item))
    if not found:
        raise UserError(f"{path} must hold labelled items, found none in it")
    return found


def _records(
    path: str, family: TaskFamily, settings: LabelledFile, left_out: LeftOut,
    head_bytes: int | None,
) -> Iterator[Record]:  # fmt: skip
    def refuse(row: BadRow) -> None:
        """By the rule for items that cannot be learned from."""
        if settings.bad_items == "refuse":
            raise row.refusal(path, advice=_SKIP)
        left_out.add(f"count as records ({row.reason})", f"line {row.line:,} of {path}")

    kind = format_of(path, family.form)
    if kind == "conll":
        return conll_records(path, settings, left_out.tally, refuse, head_bytes)
    if kind == "squad":
        return squad_records(path)
    rows = rows_of_file(path, family.form, refuse, head_bytes)
    say = left_out.columns.append
    return table_records(rows, family.form, settings, path, left_out.tally, say)
