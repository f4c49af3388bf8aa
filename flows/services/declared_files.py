"""Where infra's files are: in this checkout, else as they were installed with the package."""

from importlib.metadata import files
from pathlib import Path


def declared_file(name: str) -> Path:
    """Where infra's file of this name is."""
    checkout = Path(__file__).parents[2] / "infra" / name
    if checkout.is_file():
        return checkout
    # Asked of the installation itself: with `pip install --user` it lies in no folder of Python's.
    installed = (file for file in files("bertsmith") or [] if file.name == name)
    return Path(str(next(installed).locate())).resolve()
