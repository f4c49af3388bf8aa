"""The files of infra/: of this checkout, else those that were installed with the package."""

import sysconfig
from pathlib import Path


def declared_file(name: str) -> Path:
    """Where infra's file of this name is."""
    checkout = Path(__file__).parents[2] / "infra" / name
    if checkout.is_file():
        return checkout
    return Path(sysconfig.get_path("data")) / "share" / "bertsmith" / name
