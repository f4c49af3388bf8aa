"""Labelled rows of a Hugging Face data set."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines.core.errors import UserError
from pipelines.core.reading.hugging_face import commit_of, name_of, rows_of
from pipelines.stages.labelled.class_names import names_of_classes
from pipelines.stages.labelled.settings import LabelledDataset
from pipelines.tasks import Form


def resolved(settings: LabelledDataset) -> LabelledDataset:
    """The same data set at one commit; raises UserError where it is not found."""
    _refuse_one_split(settings)
    return settings.model_copy(update={"revision": commit_of(settings.dataset, settings.revision)})


def name_of_dataset(settings: LabelledDataset) -> dict[str, str]:
    """What decides the rows of a resolved data set: its files' bytes or its commit."""
    return {"dataset": name_of(settings.dataset, settings.revision)[0]}


def num_bytes_of(settings: LabelledDataset) -> int | None:
    """Of all files of a local copy; None on the hub."""
    return None if settings.revision else name_of(settings.dataset, None)[1]


def rows_of_split(
    settings: LabelledDataset, split: str, form: Form, num_rows: int | None
) -> Iterator[tuple[str, list[Any]]]:
    """The names of the columns, then each row and where it stands; classes by their names.

    A class that is none, as in published test splits, is empty. Raises UserError where there is no
    such split.
    """
    found = rows_of(settings.dataset, settings.configuration, split, settings.revision)
    said = names_of_classes(found.features, form)
    header: list[str] = []
    for number, row in enumerate(islice(found.rows, num_rows), start=1):
        if not header:
            header = list(row)
            yield "the header", list(header)
        yield (
            f"row {number:,}",
            [said[name](value) if name in said else value for name, value in row.items()],
        )


def _refuse_one_split(settings: LabelledDataset) -> None:
    if settings.heldout_split and (Path(settings.dataset) / "state.json").is_file():
        raise UserError(
            f"labelled.source.heldout_split must name a split of {settings.dataset}, which holds "
            "one split alone; leave it out, and a share of the items is held out"
        )
    if settings.heldout_split == settings.split:
        raise UserError(
            "labelled.source.heldout_split must be another split than the one to learn from, found "
            f"{settings.split} for both; leave it out, and a share of the items is held out"
        )
