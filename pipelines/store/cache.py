"""The local cache of remote artifacts: content-addressed, verified, bounded, shared."""

import os
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from fsspec import AbstractFileSystem

from pipelines.config.errors import UserError
from pipelines.store.access import full_disk_explained
from pipelines.store.manifest import FileRecord

DEFAULT_CACHE_BYTES = 50 * 2**30

_IN_USE_SECONDS = 60.0  # between getting a path and opening it
_LOCK_DIGITS = 3  # of a file's checksum: never more than 4,096 locks


class LocalCache:
    """Copies of remote files, in folders named by their contents; the least recently used go first.

    The folder is `$BERTSMITH_CACHE` or `~/.cache/bertsmith`, its bound `$BERTSMITH_CACHE_BYTES` or
    50 GiB; files used in the last minute stay beyond it. Any number of processes share it. A file
    that is open or mapped stays readable after it was evicted. Raises UserError where the bound is
    no number.
    """

    def __init__(self) -> None:
        default = Path.home() / ".cache" / "bertsmith"
        self.root = Path(os.environ.get("BERTSMITH_CACHE") or default)
        bound = os.environ.get("BERTSMITH_CACHE_BYTES") or str(DEFAULT_CACHE_BYTES)
        if not bound.strip().isdecimal():
            raise UserError(
                f"BERTSMITH_CACHE_BYTES={bound} is not a number of bytes such as "
                f"{DEFAULT_CACHE_BYTES}; correct it or unset it"
            )
        self.max_bytes = int(bound)
        self.files = self.root / "files"

    def fetch(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, name: str
    ) -> Path:
        """The local copy of the remote `path`, with verified bytes, as `name` in the cache.

        Raises UserError, naming the remote file, where its bytes are not those of `record`.
        """
        target = self.files / name
        if record.matches(target) and _note_use(target):
            return target
        # All ranks of a node need it: one downloads it, and the waiting ones then find it.
        with self._lock(record.sha256[:_LOCK_DIGITS]):
            while not (record.matches(target) and _note_use(target)):
                self._download(filesystem, path, record, target)
        return target

    def _download(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, target: Path
    ) -> None:
        """Fetch a file whose lock is held; what a killed process left of it is overwritten."""
        partial = self.root / "partial" / record.sha256
        for folder in (partial.parent, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        num_bytes = None
        try:
            place = f"{record.bytes} bytes of the cache (BERTSMITH_CACHE)"
            with full_disk_explained(place, self.root), suppress(FileNotFoundError):
                filesystem.get_file(path, str(partial))
                num_bytes = partial.stat().st_size
            if not record.matches(partial):
                url = filesystem.unstrip_protocol(path)
                raise record.mismatch(url, num_bytes, "the artifact's folder in the store")
            with self._lock("eviction"):
                self._make_room(record.bytes)
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _lock(self, name: str) -> FileLock:
        """A lock of the cache; the system releases it if its process dies."""
        path = self.root / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def _make_room(self, num_bytes: int) -> None:
        """Evict the least recently used files; called by one process at a time."""
        statuses = {path: path.stat() for path in self.files.rglob("*") if path.is_file()}
        total = sum(status.st_size for status in statuses.values())
        for path in sorted(statuses, key=lambda path: statuses[path].st_atime):
            is_recent = time.time() - path.stat().st_atime < _IN_USE_SECONDS
            if total + num_bytes <= self.max_bytes or is_recent:
                return
            path.unlink()
            total -= statuses[path].st_size


def _note_use(path: Path) -> bool:
    """Record that the file is used; False if another process has just evicted it."""
    try:
        # The time of access says when it was last used; that of change stays the download's.
        with suppress(PermissionError):  # of a file that another user has fetched
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return True
