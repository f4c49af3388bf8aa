"""The home folder: where a local set-up keeps everything."""

import os
from pathlib import Path

from pipelines.config.errors import UserError


def home_folder(home: str | Path | None = None) -> Path:
    """The absolute home: what was given, else $BERTSMITH_HOME, else .bertsmith here.

    A leading `~` is the person's own folder: nobody but a shell expands it in recipes and options.
    Raises UserError where something that is no folder has that name.
    """
    named = Path(home or os.environ.get("BERTSMITH_HOME") or ".bertsmith")
    folder = expanded(named).absolute()
    for path in (folder, *folder.parents):
        if path.is_dir():
            break
        if path.exists():
            raise UserError(
                f"{path} is a file and cannot be the home folder; choose another with --home or "
                "$BERTSMITH_HOME, or move the file away"
            )
    return folder


def expanded(path: Path) -> Path:
    """The path with a leading `~` or `~name` put in full; UserError where there is no such user."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(
            f"nobody's home folder is known for {path}; write the path in full"
        ) from None


def make_home(folder: Path) -> Path:
    """Make the home, or a folder of it, where it is missing.

    Raises UserError where that cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the home folder {folder} cannot be made ({error.strerror}); choose another with "
            "--home or $BERTSMITH_HOME"
        ) from error
    return folder
