"""The local cache of remote artifacts: content-addressed, verified, bounded, shared."""

import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from fsspec import AbstractFileSystem

from pipelines.artifacts.attempts.owners import Owner
from pipelines.artifacts.fingerprint import has_checksum
from pipelines.artifacts.layout import check_file_name
from pipelines.artifacts.manifest import FileRecord
from pipelines.core.errors import UserError

DEFAULT_CACHE_BYTES = 50 * 2**30

_IN_USE_SECONDS = 60.0  # between being told a path and opening it, in another process
_FOLDER_IN_USE_SECONDS = 3600.0
_FOREIGN_PARTIAL_SECONDS = 86_400.0  # of another machine, whose processes nobody here can see
_OWNER_FILE = "owner.json"
_LOCK_DIGITS = 3  # of a file's name: 4,096 locks

# When this process last handed out each cached file: its own readers have opened it since.
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
        """The local copy of the remote `path`, its bytes verified as they are now.

        Raises UserError, naming the remote file, where its bytes are not those of `record`.
        """
        target = self._files / record.sha256
        if _is_whole(target, record) and _note_use(target):
            return target
        with self._alone_with(record):  # who waited finds it
            while not (_is_whole(target, record) and _note_use(target)):
                self._download(filesystem, path, record, target)
        return target

    def folder(
        self, filesystem: AbstractFileSystem, files: Mapping[str, tuple[str, FileRecord]]
    ) -> Path:
        """A folder that shows remote files, each a path and its record, under their own names.

        It is named by what it shows, and is kept for an hour after it was last asked for.
        """
        shown = "".join(f"{name}\n{files[name][1].sha256}\n" for name in sorted(files))
        folder = self._folders / hashlib.sha256(shown.encode()).hexdigest()[:32]
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        for name, (path, record) in files.items():
            cached = self.fetch(filesystem, path, record)
            link = folder / check_file_name(name)
            with self._alone():
                link.parent.mkdir(parents=True, exist_ok=True)
                if not (link.exists() and link.samefile(cached)):
                    link.unlink(missing_ok=True)
                    os.link(cached, link)  # it is not evicted as long as it is shown
        return folder

    def _download(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, target: Path
    ) -> None:
        with self._scratch() as scratch:
            partial = scratch / record.sha256
            try:
                filesystem.get_file(path, str(partial))
            except FileNotFoundError:
                raise UserError(_complaint(filesystem, path, record, "no file")) from None
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise UserError(
                    f"the cache {self.root} must have room for {record.bytes} bytes, but its disk "
                    "is full; free some space, or name another folder in BERTSMITH_CACHE"
                ) from error
            if not _is_whole(partial, record):
                found = f"{partial.stat().st_size} bytes"
                raise UserError(_complaint(filesystem, path, record, found))
            with self._alone():
                self._files.mkdir(parents=True, exist_ok=True)
                self._make_room(record.bytes)
                partial.replace(target)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time rearranges the cache."""
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / ".lock"):
            yield

    @contextmanager
    def _alone_with(self, record: FileRecord) -> Iterator[None]:
        """One process at a time, or one thread, downloads a file: the ranks of a node want it all.

        The system takes the lock from a process that dies. Files share a lock now and then, so
        that there are never more locks than these.
        """
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / record.sha256[:_LOCK_DIGITS]):
            yield

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A folder for one download; what died downloads left is removed on the way."""
        self._partials.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix="download-", dir=self._partials))
        (scratch / _OWNER_FILE).write_text(Owner.this_process().model_dump_json())
        try:
            for other in self._partials.iterdir():
                if other != scratch and _is_abandoned(other):
                    shutil.rmtree(other, ignore_errors=True)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _make_room(self, wanted_bytes: int) -> None:
        """Evict what was used longest ago; called by one process at a time."""
        used = sorted(
            (status.st_atime_ns, status.st_size, path)
            for path in self._files.iterdir()
            if (status := _status(path)) is not None
        )
        total = sum(size for _, size, _ in used)
        if total + wanted_bytes <= self.max_bytes:
            return
        self._remove_unused_folders()
        for last_used, size, path in used:
            if total + wanted_bytes <= self.max_bytes:
                return
            status = _status(path)
            # A link from a folder in use would keep the bytes on the disk.
            if status is None or status.st_nlink > 1 or _is_about_to_be_read(path, last_used):
                continue
            path.unlink(missing_ok=True)
            total -= size

    def _remove_unused_folders(self) -> None:
        if not self._folders.is_dir():
            return
        for folder in self._folders.iterdir():
            if time.time() - folder.stat().st_mtime > _FOLDER_IN_USE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _bound(text: str | None) -> int:
    if not text:
        return DEFAULT_CACHE_BYTES
    if not text.strip().isdecimal():
        raise UserError(
            f"BERTSMITH_CACHE_BYTES must be a number of bytes such as {DEFAULT_CACHE_BYTES}, "
            f"found {text!r}; correct it or unset it"
        )
    return int(text)


def _is_whole(path: Path, record: FileRecord) -> bool:
    status = _status(path)
    if status is None or status.st_size != record.bytes:
        return False
    try:
        return has_checksum(path, record.sha256)
    except FileNotFoundError:
        return False  # another process has evicted it at this moment


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _note_use(path: Path) -> bool:
    """Date the file's last use; False where another process has evicted it at this moment."""
    try:
        # The time of access says when it was last used; that of change stays the download's.
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        _handed_out[path] = path.stat().st_atime_ns
    except FileNotFoundError:
        return False
    return True


def _is_about_to_be_read(path: Path, last_used_ns: int) -> bool:
    if _handed_out.get(path) == last_used_ns:
        return False  # by this process, which opens a file before it asks for the next
    return time.time_ns() - last_used_ns < _IN_USE_SECONDS * 1e9


def _is_abandoned(scratch: Path) -> bool:
    status = _status(scratch)
    if status is None:
        return False  # its own process has removed it
    try:
        is_alive = Owner.model_validate_json((scratch / _OWNER_FILE).read_text()).is_alive()
    except (FileNotFoundError, ValueError):
        is_alive = None  # its process is about to write this, or died before it did
    if is_alive is None:
        return time.time() - status.st_mtime > _FOREIGN_PARTIAL_SECONDS
    return not is_alive


def _complaint(filesystem: AbstractFileSystem, path: str, record: FileRecord, found: str) -> str:
    url = filesystem.unstrip_protocol(path)
    return (
        f"{url} must be the {record.bytes} bytes with sha256 {record.sha256[:12]}… that its "
        f"manifest names, found {found} that do not match; remove the artifact's folder in the "
        "store and run again to rebuild it"
    )
