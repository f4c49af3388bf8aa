"""What the classes of a Hugging Face data set are called, whose rows hold their numbers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pipelines.core.errors import UserError
from pipelines.tasks import Form

if TYPE_CHECKING:
    import pyarrow as pa

_METADATA: Final = b"huggingface"  # under which `datasets` writes its features into Parquet files


def features_of_schema(schema: "pa.Schema", path: str) -> Mapping[str, Any]:
    """What `datasets` wrote of the columns of the Parquet file at `path`; empty where it did not.

    Raises UserError where it cannot be understood.
    """
    if _METADATA not in (schema.metadata or {}):
        return {}
    from datasets import Features

    try:
        found: Mapping[str, Any] = Features.from_arrow_schema(schema)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"the names of the classes of {path} must be readable, but `datasets` cannot read them "
            f"({error}); update it, or write the file anew with the names in the label column"
        ) from error
    return found


def names_of_classes(features: Mapping[str, Any], form: Form) -> dict[str, Callable[[Any], Any]]:
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
