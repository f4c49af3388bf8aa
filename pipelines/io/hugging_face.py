"""Rows of Hugging Face datasets, streamed by name or read from a local copy."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipelines.artifacts import sha256_of_file
from pipelines.config.errors import UserError

# Advice for a name that is neither a folder nor in the registry.
FROM_THE_HUB: Final = (
    "a model of the Hugging Face hub is downloaded first: hf download NAME --local-dir FOLDER"
)


@dataclass(frozen=True)
class Rows:
    """One split: its rows in their order, and what its columns are."""

    rows: Iterator[dict[str, Any]]
    features: Mapping[str, Any]  # of `datasets`, by column; empty where nothing says


def commit_of(dataset: str, revision: str | None) -> str | None:
    """What a branch or tag (or the newest) is on the hub now; None for a local copy.

    Raises UserError where it is neither a local folder nor found on the hub.
    """
    if not dataset:
        raise UserError("a Hugging Face source needs the name of a dataset; set `dataset`")
    if Path(dataset).is_dir():
        return None
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        found = HfApi().dataset_info(dataset, revision=revision).sha
    except (HfHubHTTPError, HTTPError, HFValidationError, OfflineModeIsEnabled) as error:
        raise UserError(
            f"the dataset {dataset} is neither a local folder nor found on the hub ({error}); "
            "check its name and the network"
        ) from error
    return str(found)


def name_of(dataset: str, commit: str | None) -> tuple[str, int]:
    """What decides its rows, its files' bytes or its commit on the hub; and the bytes known of."""
    if commit is not None:
        return f"{dataset}@{commit}", 0
    folder = Path(dataset)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [f"{path.relative_to(folder)} {sha256_of_file(path)}" for path in files]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return digest, sum(path.stat().st_size for path in files)


def rows_of(dataset: str, configuration: str | None, split: str, revision: str | None) -> Rows:
    """The rows of a split, streamed; raises UserError where there is no such split."""
    import datasets

    folder = Path(dataset)
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
            found = loaded[split] if isinstance(loaded, dict) else loaded
        else:
            found = datasets.load_dataset(
                dataset, configuration, split=split, revision=revision, streaming=True
            )
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise UserError(
            f"the dataset {dataset} has no split {split} of the configuration "
            f"{configuration or '(default)'}: {error}"
        ) from error
    return Rows(_each(found, dataset, split), found.features or {})


def _each(found: Iterable[dict[str, Any]], dataset: str, split: str) -> Iterator[dict[str, Any]]:
    """The rows as they are streamed; UserError where a file of theirs breaks off."""
    from datasets.exceptions import DatasetsError

    try:
        yield from found
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"a row of the dataset {dataset}, split {split}, cannot be read "
            f"({' '.join(str(error).split())[:300]}); fetch it again, or correct its files"
        ) from error
