"""Temporary folders for files on their way to or from a store."""

import shutil
import tempfile
import time
from pathlib import Path

from pipelines.config.errors import UserError

_PREFIX = "bertsmith-scratch-"
_ABANDONED_SECONDS = 24 * 3600.0


def scratch_folder(num_bytes: int = 0) -> Path:
    """A new temporary folder, which the caller removes.

    Those that killed processes left a day ago or longer are removed here. Raises UserError if its
    disk has no room for `num_bytes`.
    """
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        if folder.exists() and time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
    free = shutil.disk_usage(parent).free
    if free < num_bytes:
        raise UserError(
            f"the temporary folder {parent} is too full for a copy of a checkpoint: "
            f"{num_bytes / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free; free "
            "some, or name another folder in TMPDIR"
        )
    return Path(tempfile.mkdtemp(prefix=_PREFIX))
