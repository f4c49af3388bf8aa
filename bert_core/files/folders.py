"""Folders that are whole or not there."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a draft beside `folder`, force it to disk, and rename it into place.

    Raises ValueError unless `folder` is new or empty. Whatever happens in between, it is never
    there in part.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be new or empty, found it in use; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(draft)
        draft.chmod(0o755)
        for path in (*draft.rglob("*"), draft):
            _force_to_disk(path)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    _force_to_disk(folder.parent)


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
