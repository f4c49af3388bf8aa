"""Which code and which libraries made a thing."""

import hashlib
import platform
import sys
import unicodedata
from functools import cache
from importlib.metadata import version
from pathlib import Path

_LIBRARIES = ("torch", "numpy", "pyarrow", "tokenizers", "ray", "mlflow", "prefect", "datasets")
_PACKAGES = ("bert_core", "pipelines", "flows")


@cache
def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that shape our results."""
    return {"python": platform.python_version()} | {name: version(name) for name in _LIBRARIES}


def versions_of(*names: str) -> str:
    """`name version` of each, sorted: what of them decides an artifact's bytes is in its name.

    Distributions, and two parts of the interpreter: `python`, its language (3.11), and `unicode`,
    the tables that normal forms, lower case and white space follow.
    """
    interpreter = {
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "unicode": unicodedata.unidata_version,
    }
    return ", ".join(f"{name} {interpreter.get(name) or version(name)}" for name in sorted(names))


@cache
def code_version() -> str:
    """The package's version and a hash of its own sources, as in `0.1.0+src.1f0c9a2b`.

    It needs no git and tells an edited checkout from a release.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{version('bertsmith')}+src.{digest.hexdigest()[:8]}"
