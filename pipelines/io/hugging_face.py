"""Hugging Face datasets: streamed from the hub by name, or read from a local copy."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pipelines.errors import UserError
from pipelines.store import sha256_of_file

# Advice for a name that is neither a folder nor in the registry.
FROM_THE_HUB: Final = (
    "a model of the Hugging Face hub is downloaded first: hf download NAME --local-dir FOLDER"
)


def commit_of(dataset: str, revision: str | None) -> str | None:
    """What a branch or tag (or the newest) is on the hub now; None for a local copy.

    Raises UserError where it is neither a local folder nor found on the hub.
    """
    if not dataset:
        raise UserError("a Hugging Face source needs the name of a dataset; set `dataset`")
    if Path(dataset).is_dir():
        return None
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(dataset, revision=revision).sha)
    except hub_errors() as error:
        raise UserError(
            f"the dataset {dataset} is neither a local folder nor found on the hub ({error}); "
            "check its name and the network"
        ) from error


def hub_errors() -> tuple[type[Exception], ...]:
    """What a call of the hub raises that has no right name or login, is refused or not answered."""
    from huggingface_hub import errors

    # The client that it asks by changed from version to version; its errors come from there.
    return (
        errors.HTTPError, errors.HfHubHTTPError, errors.OfflineModeIsEnabled,
        errors.HFValidationError, errors.LocalTokenNotFoundError,
    )  # fmt: skip


def name_of(dataset: str, commit: str | None) -> tuple[str, int]:
    """What decides its rows, its files' bytes or its commit on the hub; and the bytes known of."""
    if commit is not None:
        return f"{dataset}@{commit}", 0
    folder = Path(dataset)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [f"{path.relative_to(folder)} {sha256_of_file(path)}" for path in files]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return digest, sum(path.stat().st_size for path in files)


def rows_of(
    dataset: str, configuration: str | None, split: str, revision: str | None
) -> tuple[Iterator[dict[str, Any]], Mapping[str, Any]]:
    """The rows of a split, streamed; and by column its feature, where the dataset says it.

    Raises UserError where there is no such split, and for a dataset of CSV files: `datasets` reads
    NA as nothing and 01 as 1.
    """
    import datasets
    from datasets.packaged_modules.csv.csv import Csv

    folder = Path(dataset)
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
            rows = loaded[split] if isinstance(loaded, dict) else loaded
        else:
            builder = datasets.load_dataset_builder(dataset, configuration, revision=revision)
            if isinstance(builder, Csv):
                raise UserError(
                    f"the dataset {dataset} is made of CSV files, whose values `datasets` changes "
                    "(NA, 01); give the files themselves, as a source of files"
                )
            rows = builder.as_streaming_dataset(split)
    except (ValueError, KeyError, FileNotFoundError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"the dataset {dataset} has no split {split} of the configuration "
            f"{configuration or '(default)'}: {error}"
        ) from error
    return _each(rows, dataset, split), rows.features or {}


def _each(rows: Any, dataset: str, split: str) -> Iterator[dict[str, Any]]:
    """The rows as they are streamed; UserError where a file of theirs breaks off."""
    from datasets.exceptions import DatasetsError

    try:
        yield from rows
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"a row of the dataset {dataset}, split {split}, cannot be read "
            f"({' '.join(str(error).split())[:300]}); fetch it again, or correct its files"
        ) from error
