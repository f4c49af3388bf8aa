"""Which code and which libraries made a thing."""

import hashlib
import platform
import sys
import unicodedata
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_LIBRARIES = ("torch", "numpy", "pyarrow", "tokenizers", "ray", "mlflow", "prefect", "datasets")
_PACKAGES = ("bert_core", "pipelines", "flows")
_DECIDING = ("torch", "numpy", "pyarrow", "tokenizers")  # of what a stage's bytes are made by


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
    return f"{version('bertsmith')}+src.{source_digest()}"


@cache
def source_digest() -> str:
    """A hash of Bertsmith's own sources as they lie here, installed or not: 8 digits."""
    digest = hashlib.sha256()
    for folder in source_folders():
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def source_folders() -> list[Path]:
    """The folders of Bertsmith's packages: side by side, but where Ray has unpacked them."""
    specs = [find_spec(package) for package in _PACKAGES]
    return [Path(spec.origin).parent for spec in specs if spec is not None and spec.origin]


def computing_versions() -> dict[str, str]:
    """What must be alike where parts of one work are computed: our sources and what decides bytes.

    Of a version what follows a `+` is left out: torch for GPUs and torch for CPUs may meet.
    """
    found = {"Bertsmith's sources": source_digest(), "Python": versions_of("python").split()[1]}
    for name in _DECIDING:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = "none"
    return found
