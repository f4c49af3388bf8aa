"""From the name of a model in the registry to its files, and to the model in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import mlflow.artifacts

from pipelines.core.tracking.tracker import Tracker, server_address
from pipelines.registry.lookups.finding import find_model
from pipelines.registry.lookups.folders import OpenedModel, explained, opened
from pipelines.registry.lookups.references import is_folder
from pipelines.registry.serving.integrity import sealed_files
from pipelines.registry.tags import KIND_TAG, digest_of, task_of_kind


def open_model(tracker: Tracker, reference: str) -> OpenedModel:
    """The model that `reference` names, and its tokenizer: see `located`."""
    with located(tracker, reference) as folder:
        return opened(folder)


def versioned(tracker: Tracker, reference: str) -> str:
    """`name/version` of the version that `reference` names; a folder stays what it is.

    Raises UserError where there is none.
    """
    if is_folder(reference):
        return reference
    version = find_model(tracker.client(), reference)
    return f"{version.name}/{version.version}"


def registered_task(tracker: Tracker, reference: str) -> str | None:
    """The task that the registered model was fine-tuned for; None for an encoder, or a folder."""
    if is_folder(reference):
        return None
    kind = find_model(tracker.client(), reference).tags.get(KIND_TAG)
    return None if kind in (None, "encoder") else task_of_kind(kind)


@contextmanager
def located(tracker: Tracker, reference: str) -> Iterator[Path]:
    """A local folder with the model files that `reference` names, for as long as it is used.

    `name@alias`, `name/version`, a bare `name` (see `lookups.finding`), `models:/` before any of
    them, or a folder. Raises
    UserError where there is none and where the bytes of a version are not those that were
    registered, MlflowException where the tracker does not answer.
    """
    if is_folder(reference):
        yield Path(reference)
        return
    client = tracker.client()
    version = find_model(client, reference)
    digest = digest_of(version)
    place = client.get_model_version_download_uri(version.name, str(version.version))
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch:
        package = mlflow.artifacts.download_artifacts(
            f"models:/{version.name}/{version.version}",
            # Files of this machine are used where they lie.
            dst_path=None if urlsplit(place).scheme in ("", "file") else scratch,
            tracking_uri=server_address(tracker.uri),
        )
        with explained(Path(package)):
            sealed_files(Path(package), digest)
        yield Path(package) / "artifacts" / "model"
