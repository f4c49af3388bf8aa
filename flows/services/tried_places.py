"""Folders that are tried without making them: the first run does that."""

import tempfile
from pathlib import Path

from pipelines.core.errors import UserError


def nearest(folder: Path) -> Path:
    """The folder, or where it is missing the one above it that is there."""
    return next(each for each in (folder, *folder.parents) if each.exists())


def try_to_write(folder: Path) -> None:
    """Raise UserError where nothing can be written to a folder, or it cannot be made."""
    try:
        with tempfile.TemporaryFile(dir=nearest(folder)) as probe:
            probe.write(b"x")
    except OSError as error:
        fault = "written" if folder.is_dir() else "made"
        raise UserError(f"{folder} cannot be {fault}: {error.strerror}") from error


def place_to_try(store_url: str) -> str:
    """Where a store is tried: of a local one that is missing the folder above it that is there.

    Raises UserError where the URL cannot be a store.
    """
    from pipelines.artifacts import ArtifactStore

    store = ArtifactStore(store_url, is_patient=False)
    return str(nearest(Path(store.root))) if store.is_local else store_url
