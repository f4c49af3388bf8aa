"""The local cache of remote artifacts: content-addressed, verified by its readers, bounded."""

import os
import shutil
from pathlib import Path

from fsspec import AbstractFileSystem

from pipelines.artifacts.manifest import FileRecord

DEFAULT_CACHE_BYTES = 50 * 2**30


class LocalCache:
    """Copies of remote files, each named by its sha256; the least recently used go first.

    The folder is `$BERTSMITH_CACHE` or `~/.cache/bertsmith`, its bound
    `$BERTSMITH_CACHE_BYTES` or 50 GiB.
    """

    def __init__(self) -> None:
        default = Path.home() / ".cache" / "bertsmith"
        self.root = Path(os.environ.get("BERTSMITH_CACHE", default))
        self.max_bytes = int(os.environ.get("BERTSMITH_CACHE_BYTES", DEFAULT_CACHE_BYTES))

    def fetch(self, filesystem: AbstractFileSystem, path: str, record: FileRecord) -> Path:
        """The local copy of the remote `path`; its reader verifies the bytes."""
        target = self.root / "files" / record.sha256
        if target.exists() and target.stat().st_size == record.bytes:
            os.utime(target)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        self._make_room(record.bytes)
        partial = target.with_name(f".partial-{record.sha256}-{os.getpid()}")
        filesystem.get_file(path, str(partial))
        partial.replace(target)
        return target

    def folder(self, fingerprint: str, files: dict[str, Path]) -> Path:
        """A folder that shows `files` under their own names (hard links into the cache)."""
        folder = self.root / "folders" / fingerprint
        for name, cached in files.items():
            link = folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                os.link(cached, link)
        return folder

    def _make_room(self, wanted_bytes: int) -> None:
        files = [path for path in (self.root / "files").iterdir() if path.is_file()]
        total = sum(path.stat().st_size for path in files)
        if total + wanted_bytes <= self.max_bytes:
            return
        # Links into the cache would keep evicted bytes on the disk.
        shutil.rmtree(self.root / "folders", ignore_errors=True)
        for path in sorted(files, key=lambda path: path.stat().st_mtime):
            if total + wanted_bytes <= self.max_bytes:
                return
            total -= path.stat().st_size
            path.unlink()
