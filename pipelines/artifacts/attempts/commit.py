"""What makes a thing count: forced to the disk, or created where nothing was."""

import errno
import os
import time
from pathlib import Path

from fsspec import AbstractFileSystem

_TRIES = 5
_PAUSE_SECONDS = 0.2


def create_only(filesystem: AbstractFileSystem, path: str, data: bytes) -> bool:
    """Write `path` where nothing is; False where something was there first.

    The store decides (`If-None-Match: *` on S3, its like elsewhere). A store without such a
    condition is asked before and written after: the best that it allows.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            filesystem.pipe_file(path, data, mode="create")
        except FileExistsError:
            return _is_ours(filesystem, path, data)
        except OSError as error:
            if filesystem.exists(path):  # stores name the refused condition in different ways
                return _is_ours(filesystem, path, data)
            if error.errno == errno.ENOSYS:
                filesystem.pipe_file(path, data)
                return True
            if not tries_left:
                raise
            time.sleep(_PAUSE_SECONDS)  # two writers at the same instant: S3 refuses both
        else:
            return True
    raise AssertionError("the last try returns or raises")


def _is_ours(filesystem: AbstractFileSystem, path: str, data: bytes) -> bool:
    """A client whose answer was lost asks again, and meets what it wrote itself."""
    return bool(filesystem.cat_file(path) == data)


def write_to_disk(path: Path, text: str) -> None:
    """Write a file whole or not at all: it survives a power cut once this returns."""
    partial = path.with_name(f".partial-{path.name}-{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    flush(partial)
    partial.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Force a file's bytes, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folders(folder: Path) -> None:
    """Force the entries of `folder` and of every directory in it to the disk."""
    for path in folder.rglob("*"):
        if path.is_dir():
            flush(path)
    flush(folder)
