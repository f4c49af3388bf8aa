"""From a reference to a model's files: a name in the registry, a fingerprint or a folder.

MLflow is imported where the registry is asked, and only there: it takes two seconds.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bert_core.model.catalogue import Model
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError, readable
from pipelines.registry.find import (
    REGISTERED,
    digest_of,
    find_model,
    is_folder,
    reference_to,
    uri_of,
)
from pipelines.registry.seal import sealed_files
from pipelines.stage import StageContext
from pipelines.store import Artifact
from pipelines.train.imported_models import (
    existing_encoder,
    find_model_artifact,
    import_folder,
    is_fingerprint,
    is_ours,
    refuse_own_code,
)

if TYPE_CHECKING:
    from pipelines.tracking.tracker import Tracker

OpenedModel = tuple[Model, WordPieceTokenizer]


def local_model(reference: str, context: StageContext) -> str:
    """`reference` as `located` takes it: a name in the registry, or a folder of ours.

    A fingerprint becomes the folder of its artifact, and a published BERT is taken into the store
    first. Raises UserError for a fingerprint that the store has not, and for a folder that holds
    no model.
    """
    if is_fingerprint(reference):
        found = find_model_artifact(reference, context.store)
        if found is None:
            raise UserError(
                f"the store {context.store.url} has no model with the fingerprint {reference}; "
                "see `bertsmith store`"
            )
        return str(found.local_folder())
    if is_folder(reference):
        refuse_own_code(Path(reference))
        if not is_ours(Path(reference)):
            return str(import_folder(Path(reference), context, source=reference).local_folder())
    return reference


def opened(folder: Path) -> OpenedModel:
    """The model in `folder` and its tokenizer; UserError, naming it, where it holds none whole."""
    with readable(folder):
        model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
        tokenizer.check_embedding_rows(model.config.vocab_size)
        return model.pack(), tokenizer


@contextmanager
def located(tracker: "Tracker", reference: str) -> Iterator[Path]:
    """A local folder with the model files that `reference` names, for as long as it is used.

    `name@alias`, `name/version`, a bare `name` (see `find`), `models:/` before any of them, or
    a folder. Raises UserError where there is none and where the bytes of a version are not those
    that were registered, MlflowException where the tracker does not answer.
    """
    if is_folder(reference):
        yield Path(reference)
        return
    import mlflow.artifacts

    from pipelines.tracking.tracker import time_for_files

    client = tracker.client()
    version = find_model(client, reference)
    digest = digest_of(version)
    address = client.get_model_version_download_uri(version.name, str(version.version))
    with tempfile.TemporaryDirectory(prefix="bertsmith-model-") as scratch, time_for_files():
        package = mlflow.artifacts.download_artifacts(
            uri_of(version),
            # Local files are used in place.
            dst_path=None if urlsplit(address).scheme in ("", "file") else scratch,
            tracking_uri=tracker.uri,
        )
        with readable(Path(package)):
            sealed_files(Path(package), digest)
        yield Path(package) / "artifacts" / "model"


def open_model(tracker: "Tracker", reference: str) -> OpenedModel:
    """The model that `reference` names, and its tokenizer: see `located`."""
    with located(tracker, reference) as folder:
        return opened(folder)


def versioned(tracker: "Tracker", reference: str) -> str:
    """`name/version` of the version that `reference` names; a folder stays what it is.

    Raises UserError where there is none.
    """
    if is_folder(reference):
        return reference
    return reference_to(find_model(tracker.client(), reference))


def resolved_encoder(reference: str, tracker: "Tracker", context: StageContext) -> Artifact:
    """The encoder that `reference` names: models:/name@alias, a folder, or a fingerprint.

    A registered one is taken into the store as it is now: when its alias moves, the same recipe
    names another one. Raises UserError where there is none.
    """
    if not reference.startswith(REGISTERED):
        return existing_encoder(reference, context)
    with located(tracker, reference) as folder:
        return import_folder(folder, context, source=reference)
