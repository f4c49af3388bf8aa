"""The local cache of remote artifacts: content-addressed, verified, bounded, shared."""

import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock
from fsspec import AbstractFileSystem

from pipelines.artifacts.access import full_disk_explained
from pipelines.artifacts.manifest import FileRecord, check_file_name
from pipelines.config.errors import UserError

DEFAULT_CACHE_BYTES = 50 * 2**30

_IN_USE_SECONDS = 60.0  # between getting a path and opening it, in another process
_FOLDER_IN_USE_SECONDS = 3600.0
_PARTIAL_SECONDS = 3600.0  # a download that writes nothing for so long has died
_LOCK_DIGITS = 3  # of a file's name: never more than 4,096 locks

# When this process last returned each cached file: its own readers have opened it since.
_handed_out: dict[Path, int] = {}


class LocalCache:
    """Copies of remote files, each named by its sha256; the least recently used go first.

    The folder is `$BERTSMITH_CACHE` or `~/.cache/bertsmith`, its bound
    `$BERTSMITH_CACHE_BYTES` or 50 GiB. Any number of processes share it. A file that is open or
    mapped stays readable after it was evicted. Raises UserError where the bound is no number.
    """

    def __init__(self) -> None:
        default = Path.home() / ".cache" / "bertsmith"
        self.root = Path(os.environ.get("BERTSMITH_CACHE") or default)
        self.max_bytes = _bound(os.environ.get("BERTSMITH_CACHE_BYTES"))
        self._files = self.root / "files"
        self._partials = self.root / "partial"
        self._folders = self.root / "folders"

    def fetch(self, filesystem: AbstractFileSystem, path: str, record: FileRecord) -> Path:
        """The local copy of the remote `path`, with verified bytes.

        Raises UserError, naming the remote file, where its bytes are not those of `record`.
        """
        target = self._files / record.sha256
        if record.matches(target) and _note_use(target):
            return target
        # All ranks of a node need it: one downloads it, and the waiting ones then find it.
        with self._lock(f"locks/{record.sha256[:_LOCK_DIGITS]}"):
            while not (record.matches(target) and _note_use(target)):
                self._download(filesystem, path, record, target)
        return target

    def folder(
        self, filesystem: AbstractFileSystem, files: Mapping[str, tuple[str, FileRecord]]
    ) -> Path:
        """A folder that shows remote files, each a path and its record, under their own names.

        It is named by its contents, and kept for an hour after its last use.
        """
        shown = "".join(f"{name}\n{files[name][1].sha256}\n" for name in sorted(files))
        folder = self._folders / hashlib.sha256(shown.encode()).hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # of another user's
            os.utime(folder)
        for name, (path, record) in files.items():
            cached = self.fetch(filesystem, path, record)
            link = folder / check_file_name(name)
            with self._lock(".lock"):
                link.parent.mkdir(parents=True, exist_ok=True)
                if not (link.exists() and link.samefile(cached)):
                    link.unlink(missing_ok=True)
                    os.link(cached, link)  # it is not evicted as long as it is shown
        return folder

    def _download(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, target: Path
    ) -> None:
        """Fetch a file whose lock is held; what a killed process left of it is overwritten."""
        self._partials.mkdir(parents=True, exist_ok=True)
        partial = self._partials / record.sha256
        try:
            with full_disk_explained(
                f"{record.bytes} bytes of the cache (BERTSMITH_CACHE)", self.root
            ):
                filesystem.get_file(path, str(partial))
        except FileNotFoundError:
            raise _mismatch(filesystem, path, record, None) from None
        else:
            if not record.matches(partial):
                raise _mismatch(filesystem, path, record, partial.stat().st_size)
            with self._lock(".lock"):
                self._files.mkdir(parents=True, exist_ok=True)
                self._make_room(record.bytes)
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _lock(self, name: str) -> FileLock:
        """A lock of the cache; the system releases it if its process dies."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def _make_room(self, wanted_bytes: int) -> None:
        """Evict the least recently used files; called by one process at a time."""
        _remove_older(self._partials, _PARTIAL_SECONDS)
        used = sorted(
            (status.st_atime_ns, status.st_size, path)
            for path in self._files.iterdir()
            if (status := _status(path)) is not None
        )
        total = sum(size for _, size, _ in used)
        if total + wanted_bytes <= self.max_bytes:
            return
        _remove_older(self._folders, _FOLDER_IN_USE_SECONDS)
        for last_used, size, path in used:
            if total + wanted_bytes <= self.max_bytes:
                return
            status = _status(path)
            # A link from a folder in use would keep the bytes on the disk.
            if status is None or status.st_nlink > 1 or _is_about_to_be_read(path, last_used):
                continue
            path.unlink(missing_ok=True)
            total -= size


def _remove_older(folder: Path, seconds: float) -> None:
    """Remove everything in `folder` that was not changed for `seconds`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        status = _status(path)
        if status is not None and time.time() - status.st_mtime > seconds:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _bound(text: str | None) -> int:
    if not text:
        return DEFAULT_CACHE_BYTES
    if not text.strip().isdecimal():
        raise UserError(
            f"BERTSMITH_CACHE_BYTES={text} is not a number of bytes such as "
            f"{DEFAULT_CACHE_BYTES}; correct it or unset it"
        )
    return int(text)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _note_use(path: Path) -> bool:
    """Record that the file is used; False if another process has just evicted it."""
    try:
        # The time of access says when it was last used; that of change stays the download's.
        with suppress(PermissionError):  # of a file that another user has fetched
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        _handed_out[path] = path.stat().st_atime_ns
    except FileNotFoundError:
        return False
    return True


def _is_about_to_be_read(path: Path, last_used_ns: int) -> bool:
    if _handed_out.get(path) == last_used_ns:
        return False  # by this process, which opens a file before it asks for the next
    return time.time_ns() - last_used_ns < _IN_USE_SECONDS * 1e9


def _mismatch(
    filesystem: AbstractFileSystem, path: str, record: FileRecord, num_bytes: int | None
) -> UserError:
    url = filesystem.unstrip_protocol(path)
    return record.mismatch(url, num_bytes, "the artifact's folder in the store")
