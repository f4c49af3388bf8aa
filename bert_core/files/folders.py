"""Folders that are complete or absent."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary folder, force it to disk, and rename it to `folder`.

    The umask alone decides who can read the files. Raises ValueError unless `folder` is new or
    empty. `folder` is never there in part.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} must be new or empty, found it in use; choose another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.parent / f".{folder.name}-{secrets.token_hex(4)}"
    draft.mkdir()
    allowed = draft.stat().st_mode & 0o666
    try:
        write(draft)
        for path in (*draft.rglob("*"), draft):
            if path.is_file():
                path.chmod(allowed)  # safetensors keeps its files to their owner
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
