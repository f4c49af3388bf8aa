"""Bertsmith's own environment variables, and the home folder, which one of them names.

Variables of other programs (PREFECT_…, MLFLOW_…, RAY_…, AWS_…) keep their own names and meanings.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.config.errors import UserError

VARIABLES: Final[Mapping[str, str]] = {
    "BERTSMITH_HOME": "folder of a local set-up: store, registry, logs; default .bertsmith",
    "BERTSMITH_STORE": "artifact store, a folder or s3://…; default the store of the home",
    "BERTSMITH_CACHE": "folder for copies of remote artifacts; default ~/.cache/bertsmith",
    "BERTSMITH_CACHE_BYTES": "how large the cache may grow; default 50 GiB",
    "BERTSMITH_WAIT_FOR_NODES_SECONDS": "how long a training run waits for nodes; default 0",
    "BERTSMITH_MLFLOW_LOGIN": "http://user:password@host:port of the MLflow server that we serve",
    # Of the image, its composition and its manifests (infra/).
    "BERTSMITH_CREDENTIALS": "file of NAME=value lines that the image reads first",
    "BERTSMITH_RAY_HEAD": "host:port of a cluster that the image joins beside its command",
    "BERTSMITH_IMAGE": "the image of our roles",
    "BERTSMITH_LISTEN": "address that the composition's pages listen on; default 127.0.0.1",
}


def home_folder(home: str | Path | None = None) -> Path:
    """The absolute home: what was given, else $BERTSMITH_HOME, else .bertsmith here.

    A leading `~` is expanded: in recipes and options no shell does it.
    Raises UserError where something that is no folder has that name, and where it has a `?`.
    """
    named = Path(home or os.environ.get("BERTSMITH_HOME") or ".bertsmith")
    folder = expanded(named).absolute()
    if "?" in str(folder):
        raise UserError(
            f"the home folder {folder} has a ? in its name, where the address of a database ends; "
            "choose another with --home or $BERTSMITH_HOME"
        )
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
            f"{path} begins with an unknown user's home folder; write the path in full"
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
