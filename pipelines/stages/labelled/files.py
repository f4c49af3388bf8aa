"""Labelled records as items of a family: read, checked one by one, refused or left out."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipelines.core.errors import UserError
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.conll import conll_records
from pipelines.stages.labelled.hugging_face import rows_of_split
from pipelines.stages.labelled.records import Record, format_of
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.stages.labelled.squad import squad_records
from pipelines.stages.labelled.tables import rows_of_file, table_records
from pipelines.tasks import BadItemError, Item, TaskFamily

_PLACES = 20  # of items that were left out, which are told


class Grouped(NamedTuple):
    """An item, and what it belongs to."""

    group: str
    item: Item


@dataclass(slots=True)
class LeftOut:
    """Items that cannot be learned from: how many for which reason, and where some stand."""

    tally: Tally = field(default_factory=Tally)
    places: list[str] = field(default_factory=list)

    def add(self, must: str, place: str) -> None:
        self.tally.dropped[f"items that do not {must}"] += 1
        if len(self.places) < _PLACES:
            self.places.append(place)

    def to_json(self) -> dict[str, Any]:
        """Counts, and the places where there are any."""
        return {**self.tally.to_json(), **({"left_out": self.places} if self.places else {})}


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
    records = _records(path, family, settings, left_out.tally, head_bytes)
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
    records = table_records(rows, family.form, settings, path, left_out.tally)
    return _items(records, path, family, settings, left_out)


def _items(
    records: Iterator[Record],
    path: str,
    family: TaskFamily,
    settings: LabelledFile | LabelledDataset,
    left_out: LeftOut,
) -> list[Grouped]:
    found: list[Grouped] = []
    for record in records:
        try:
            item = family.item(record.fields)
        except BadItemError as error:
            if settings.bad_items == "refuse":
                raise UserError(
                    f"every item of {path} must {error.must}, found {error.found} in "
                    f"{record.place}; mend or remove it, or leave such items out with "
                    "labelled.source.bad_items=skip"
                ) from error
            left_out.add(error.must, f"{record.place} of {path}")
            continue
        found.append(Grouped(record.group or family.group(item), item))
    if not found:
        raise UserError(f"{path} must hold labelled items, found none in it")
    return found


def _records(
    path: str, family: TaskFamily, settings: LabelledFile, tally: Tally, head_bytes: int | None
) -> Iterator[Record]:
    kind = format_of(path, family.form)
    if kind == "conll":
        return conll_records(path, settings, tally, head_bytes)
    if kind == "squad":
        return squad_records(path)
    rows = rows_of_file(path, family.form, head_bytes)
    return table_records(rows, family.form, settings, path, tally)
