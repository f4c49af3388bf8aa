"""An existing encoder that a recipe names: looked up without reading it, so without torch."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from pipelines.errors import UserError, nearest
from pipelines.io.hugging_face import FROM_THE_HUB
from pipelines.stage import IMPORTED
from pipelines.store import Artifact, ArtifactStore
from pipelines.store.artifact import is_fingerprint

# Kinds of artifacts that hold a model and its tokenizer; `imported_encoder` was the first's name.
_KINDS: Final = (IMPORTED, "encoder", "finetuned", "imported_encoder")


def find_model_artifact(fingerprint: str, store: ArtifactStore) -> Artifact | None:
    """The artifact with a model that has this fingerprint; None where the store has none."""
    if not is_fingerprint(fingerprint):
        return None
    artifacts = (store.find(kind, fingerprint) for kind in _KINDS)
    return next((artifact for artifact in artifacts if artifact is not None), None)


def check_encoder(reference: str, store: ArtifactStore) -> None:
    """Raise UserError where `reference` is no folder and no fingerprint in the store."""
    if not is_model_folder(reference) and find_model_artifact(reference, store) is None:
        raise missing_encoder(reference, store)


def is_model_folder(reference: str) -> bool:
    """Whether a folder is meant; one that may not be entered is none."""
    with suppress(OSError):
        return bool(reference.strip()) and Path(reference).is_dir()
    return False


def missing_encoder(reference: str, store: ArtifactStore) -> UserError:
    """The error for an encoder that is not there; it names folders beside it that are alike."""
    path, folders = Path(reference), list[str]()
    with suppress(OSError, ValueError):  # what cannot be listed has no hint
        folders = [each.name for each in path.parent.iterdir() if each.is_dir()]
    near = nearest(path.name, filter(str.isprintable, folders))
    return UserError(
        f"there is no encoder {reference!r}{near}; name a folder with a model, "
        "models:/<name>@<alias> or a fingerprint in the store "
        f"{store.url} (see `bertsmith store`); {FROM_THE_HUB}"
    )
