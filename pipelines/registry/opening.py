"""From the name of a model, or its folder, to the model in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import mlflow.artifacts

from bert_core.model.catalogue import Model
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import Tracker, server_address
from pipelines.registry.lookups.finding import REGISTERED, find_model
from pipelines.registry.serving.integrity import sealed_files
from pipelines.registry.tags import digest_of

OpenedModel = tuple[Model, WordPieceTokenizer]


def open_model(tracker: Tracker, reference: str) -> OpenedModel:
    """The model that `reference` names, and its tokenizer: see `located`."""
    with located(tracker, reference) as folder:
        return opened(folder)


@contextmanager
def located(tracker: Tracker, reference: str) -> Iterator[Path]:
    """A local folder with the model files that `reference` names, for as long as it is used.

    `name@alias`, `name/version`, a bare `name` (see `lookups.finding`), `models:/` before any of
    them, or a folder. Raises
    UserError where there is none and where the bytes of a version are not those that were
    registered, MlflowException where the tracker does not answer.
    """
    # A folder that happens to have a name's own is never what models:/ means.
    if not reference.startswith(REGISTERED) and Path(reference).is_dir():
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


def opened(folder: Path) -> OpenedModel:
    """The model in `folder` and its tokenizer; UserError, naming it, where it holds none whole."""
    with explained(folder):
        model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
        tokenizer.refuse_other_table(model.config.vocab_size)
        return model, tokenizer


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """What is wrong with the files of a model in `folder` becomes one sentence that names it."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, OSError) as error:
        said = " ".join(str(error).split())
        if str(folder) not in said:
            said = f"{folder} must hold a model that can be read, but {said}"
        raise UserError(said) from error
