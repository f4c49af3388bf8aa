"""Fingerprints: a name that says what made a thing, and the checksums of files."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Files that this process has hashed, with what tells whether they are still the same.
_verified: dict[tuple[str, str], tuple[int, ...]] = {}


def canonical_json(value: Any) -> str:
    """The one spelling of `value` as JSON: sorted keys, no white space, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def fingerprint_of(
    kind: str, version: int, settings: Mapping[str, Any], inputs: Mapping[str, str]
) -> str:
    """Name an artifact by its kind, format version, settings and the fingerprints of its inputs.

    Returns 32 hexadecimal digits (the first 128 bits of a SHA-256).
    """
    recipe = {"kind": kind, "version": version, "settings": settings, "inputs": inputs}
    return hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:32]


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def has_checksum(path: Path, sha256: str) -> bool:
    """Whether the file has the checksum; raises FileNotFoundError where there is none."""
    status = path.stat()
    as_it_is = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if _verified.get((str(path), sha256)) == as_it_is:
        return True
    if sha256_of_file(path) != sha256:
        return False
    _verified[str(path), sha256] = as_it_is
    return True
