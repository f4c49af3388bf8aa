"""Labelled rows of a Hugging Face dataset, and what the classes are called that they hold by
number."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pipelines.config.errors import UserError
from pipelines.io.hugging_face import commit_of, name_of, rows_of
from pipelines.stages.dataset.settings import LabelledDataset
from pipelines.tasks import Form

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA: Final = b"huggingface"  # under which `datasets` writes its features into Parquet files


def resolved(settings: LabelledDataset) -> LabelledDataset:
    """The same dataset at one commit; raises UserError where it is not found."""
    _check_second_split(settings)
    return settings.model_copy(update={"revision": commit_of(settings.dataset, settings.revision)})


def name_of_dataset(settings: LabelledDataset) -> dict[str, str]:
    """What decides the rows of a resolved dataset: its files' bytes or its commit."""
    return {"dataset": name_of(settings.dataset, settings.revision)[0]}


def num_bytes_of(settings: LabelledDataset) -> int | None:
    """Of all files of a local copy; None on the hub."""
    return None if settings.revision else name_of(settings.dataset, None)[1]


def rows_of_split(
    settings: LabelledDataset, split: str, form: Form, num_rows: int | None
) -> Iterator[tuple[str, list[Any]]]:
    """The names of the columns, then each row and where it is; classes by their names.

    A class that is none, as in published test splits, is empty. Raises UserError where there is no
    such split.
    """
    found = rows_of(settings.dataset, settings.configuration, split, settings.revision)
    said = class_names(found.features, form)
    header: list[str] = []
    for number, row in enumerate(islice(found.rows, num_rows), start=1):
        if not header:
            header = list(row)
            yield "the header", list(header)
        yield (
            f"row {number:,}",
            [said[name](value) if name in said else value for name, value in row.items()],
        )


def _check_second_split(settings: LabelledDataset) -> None:
    if settings.heldout_split and (Path(settings.dataset) / "state.json").is_file():
        raise UserError(
            f"{settings.dataset} holds a single split; leave out dataset.source.heldout_split: "
            "a share of the items is held out"
        )
    if settings.heldout_split == settings.split:
        raise UserError(
            f"dataset.source.split and heldout_split are both {settings.split}; leave out "
            "heldout_split, and a share of the items is held out"
        )


def class_names_of_schema(
    schema: "pa.Schema", path: str, form: Form
) -> dict[str, Callable[[Any], Any]]:
    """As `class_names`, where `datasets` wrote its features into the Parquet file at `path`.

    Raises UserError where it cannot be understood.
    """
    if _METADATA not in (schema.metadata or {}):
        return {}
    from datasets import Features

    try:
        features = Features.from_arrow_schema(schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"`datasets` cannot read the names of the classes of {path} ({error}); update it, or "
            "write the names into the label column"
        ) from error
    return class_names(features, form)


def class_names(features: Mapping[str, Any], form: Form) -> dict[str, Callable[[Any], Any]]:
    """For columns of classes, and of lists of classes, how a value is called.

    A number without a name, such as -1 in published test splits, is none. The number of a choice
    stays one: it is the choice's index, whatever it is called.
    """
    if form == "choices" or not features:
        return {}
    from datasets import ClassLabel

    said: dict[str, Callable[[Any], Any]] = {}
    for name, feature in features.items():
        inner = getattr(feature, "feature", None)
        if isinstance(feature, ClassLabel):
            said[name] = _one(feature)
        elif isinstance(inner, ClassLabel):
            said[name] = _several(inner)
    return said


def _one(feature: Any) -> Callable[[int | None], str | None]:
    names: list[str] = feature.names
    return lambda value: names[value] if value is not None and 0 <= value < len(names) else None


def _several(feature: Any) -> Callable[[list[int] | None], list[str | None] | None]:
    one = _one(feature)
    return lambda values: None if values is None else [one(value) for value in values]
