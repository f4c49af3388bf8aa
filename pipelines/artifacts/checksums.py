"""Checksums of files, taken once as long as nobody writes them."""

from pathlib import Path

from pipelines.artifacts.fingerprint import sha256_of_file

# Files that this process has hashed, with what tells whether they are still the same.
_verified: dict[tuple[str, str], tuple[int, ...]] = {}


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
