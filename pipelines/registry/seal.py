"""Whether a package is the bytes that were registered, file by file.

This file travels in every package, beside the served model, which runs it before anything else of
the package: it needs the standard library alone.
"""

import hashlib
import json
from pathlib import Path

SEAL_FILE = "sealed_files.json"  # SHA-256 of each other file, by its path
_NOT_SEALED = (SEAL_FILE, "registered_model_meta")  # MLflow writes the second into its downloads
# Python writes it. Our commands never read it; `mlflow models serve` reads that of served_model.py,
# before anything of this module runs: docs/registry.md says what follows.
_BYTECODE = "__pycache__"


class ChangedPackageError(ValueError):
    """A package that is not what was registered."""


def seal(package: Path) -> str:
    """Write down what every file of `package` hashes to; returns the digest of that list."""
    text = json.dumps(_hashes(package), indent=0, sort_keys=True)
    (package / SEAL_FILE).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed_files(package: Path, digest: str | None = None) -> dict[str, str]:
    """The SHA-256 of each file of `package`, after all were found to be what was sealed.

    Raises ChangedPackageError, naming a file, where one was changed, added or removed since, and
    where the list of them is not the one that `digest` names.
    """
    if not (package / SEAL_FILE).is_file():
        raise _changed(package, SEAL_FILE, "is missing")
    text = (package / SEAL_FILE).read_bytes()
    if digest is not None and hashlib.sha256(text).hexdigest() != digest:
        raise _changed(package, SEAL_FILE, "is not the list that the registry keeps the digest of")
    sealed: dict[str, str] = json.loads(text)
    hashes = _hashes(package)
    for name in sorted({*sealed, *hashes}):
        if sealed.get(name) != hashes.get(name):
            fault = "has other bytes" if name in sealed else "was added"
            raise _changed(package, name, fault if name in hashes else "is missing")
    return sealed


def _changed(package: Path, name: str, fault: str) -> ChangedPackageError:
    return ChangedPackageError(
        f"the package {package} must be the bytes that were registered, but {name} {fault}; "
        "nothing of it is used: restore it, or delete the version and register its model again"
    )


def _hashes(package: Path) -> dict[str, str]:
    hashes = {}
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package)
        if path.is_symlink():  # what it leads to may change, and a linked folder is not walked
            raise _changed(package, str(name), "is a symbolic link")
        if path.is_file() and _BYTECODE not in name.parts and str(name) not in _NOT_SEALED:
            with path.open("rb") as file:
                hashes[name.as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes
