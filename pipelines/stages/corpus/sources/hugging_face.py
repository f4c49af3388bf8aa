"""Documents of Hugging Face data sets, streamed by name or read from a local copy."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.artifacts import sha256_of_file
from pipelines.core.errors import UserError
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import HuggingFaceDataset
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span
from pipelines.stages.corpus.sources.records import document_of


def resolve(settings: HuggingFaceDataset) -> tuple[HuggingFaceDataset, list[InputFile], str]:
    """The commit that is read, and the data set as one input.

    It is named by its files' bytes, or by its commit on the hub. Raises UserError where it is
    neither a local folder nor found on the hub.
    """
    settings = resolve_revision(settings)
    folder = Path(settings.dataset)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = [f"{path.relative_to(folder)} {sha256_of_file(path)}" for path in files]
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        num_bytes = sum(path.stat().st_size for path in files)
    else:
        digest, num_bytes = f"{settings.dataset}@{settings.revision}", 0
    file = InputFile(
        path=settings.dataset,
        label=label_of_dataset(settings),
        num_bytes=num_bytes,
        digest=digest,
        splittable=False,
    )
    return settings, [file], ""


def resolve_revision(settings: HuggingFaceDataset) -> HuggingFaceDataset:
    """The same data set at one commit: what a branch or tag names now, or none for a local copy.

    Raises UserError where it is neither a local folder nor found on the hub.
    """
    if not settings.dataset:
        raise UserError("a Hugging Face source must name a data set; set `dataset`")
    revision = None if Path(settings.dataset).is_dir() else _commit(settings)
    return settings.model_copy(update={"revision": revision})


def label_of_dataset(settings: HuggingFaceDataset) -> str:
    """What its documents are labelled with, where no field says it."""
    return settings.name or settings.dataset.rstrip("/").rsplit("/", 1)[-1]


def read(settings: HuggingFaceDataset, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """The rows of the split, in their order."""
    for record in _rows(settings):
        document = document_of(settings, record, span.file.label, tally)
        if document is not None:
            yield document


def _commit(settings: HuggingFaceDataset) -> str:
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        found = HfApi().dataset_info(settings.dataset, revision=settings.revision).sha
    except (HfHubHTTPError, HTTPError, OfflineModeIsEnabled) as error:
        raise UserError(
            f"the data set {settings.dataset} must be a local folder or be found on the hub, but "
            f"it is not ({error}); check its name and the network"
        ) from error
    return str(found)


def _rows(settings: HuggingFaceDataset) -> Iterator[dict[str, Any]]:
    import datasets

    folder = Path(settings.dataset)
    try:
        if (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file():
            loaded = datasets.load_from_disk(str(folder))
            rows = loaded[settings.split] if isinstance(loaded, dict) else loaded
        else:
            rows = datasets.load_dataset(
                settings.dataset,
                settings.configuration,
                split=settings.split,
                revision=settings.revision,
                streaming=True,
            )
    except (ValueError, KeyError, FileNotFoundError) as error:
        raise UserError(
            f"the data set {settings.dataset} must have the configuration "
            f"{settings.configuration or '(default)'} and the split {settings.split}: {error}"
        ) from error
    yield from rows
