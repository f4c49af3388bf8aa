"""What a model is called by: a name in the registry, or a folder."""

from pathlib import Path
from typing import Final

REGISTERED: Final = "models:/"


def is_folder(reference: str) -> bool:
    """Whether a folder is meant: one that has a registered name is never what models:/ means."""
    return not reference.startswith(REGISTERED) and Path(reference).is_dir()
