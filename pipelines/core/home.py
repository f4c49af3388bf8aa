"""The home folder: where a local set-up keeps everything."""

import os
from pathlib import Path

from pipelines.core.errors import UserError


def home_folder(home: str | Path | None = None) -> Path:
    """The absolute home: what was given, else $BERTSMITH_HOME, else .bertsmith here.

    Raises UserError where something that is no folder has that name.
    """
    folder = Path(home or os.environ.get("BERTSMITH_HOME") or ".bertsmith").absolute()
    for path in (folder, *folder.parents):
        if path.is_dir():
            break
        if path.exists():
            raise UserError(
                f"the home must be a folder, but {path} is a file; choose another with --home or "
                "$BERTSMITH_HOME, or move the file away"
            )
    return folder


def make_home(folder: Path) -> Path:
    """Make the home, or a folder of it, where it is missing.

    Raises UserError where that cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the home must be a folder that can be made and written, but {folder} cannot be made "
            f"({error.strerror}); choose another with --home or $BERTSMITH_HOME"
        ) from error
    return folder
