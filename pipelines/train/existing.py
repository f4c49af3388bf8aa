"""An existing encoder that a recipe names: found without reading it, so without torch."""

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
    if reference.strip() and Path(reference).is_dir():
        return
    if find_model_artifact(reference, store) is None:
        beside = Path(reference).absolute().parent
        folders = [each.name for each in beside.iterdir()] if beside.is_dir() else []
        raise UserError(
            f"there is no encoder {reference!r}{nearest(Path(reference).name, folders)}; name a "
            f"folder with a model, models:/<name>@<alias> or a fingerprint in the store "
            f"{store.url} (see `bertsmith store`); {FROM_THE_HUB}"
        )
