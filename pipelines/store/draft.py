"""A draft: an artifact being built, kept file by file, so that a stopped stage resumes."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from pipelines.store.access import flush, full_disk_explained, write_to_disk
from pipelines.store.artifact import FileRecord, check_file_name, path_by_content, sha256_of_file


@dataclass(slots=True)
class DraftFile:
    """A file being written at `path`, with figures that its writer counts."""

    path: Path
    figures: dict[str, Any] = field(default_factory=dict)


class Built(NamedTuple):
    """What a build returns: the names of exactly its files, and its statistics."""

    files: Iterable[str]
    statistics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Draft:
    """Where a stage writes its files; each appears whole, with a ledger entry, or not at all.

    The next build of the same artifact by the same code continues it. A draft can be pickled, so
    that tasks on any node write their own files through it. On an object store two builders may
    share one: files lie below their checksums, so neither overwrites the other's.
    """

    fingerprint: str  # of the artifact that is built
    filesystem: AbstractFileSystem
    root: str  # of its files
    work: str  # a folder for a stage's working state; removed on publishing
    # What this process wrote: another builder's ledger entries do not count for these files.
    written: dict[str, FileRecord] = field(default_factory=dict, repr=False, compare=False)

    _LEDGER: ClassVar = ".ledger-of-draft"  # in `work`, with an entry for each finished file

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    @contextmanager
    def file(self, name: str) -> Iterator[DraftFile]:
        """Yield a local path to write `name` to; on leaving without an error it is kept.

        If the process dies meanwhile, neither readers nor `finished` see the incomplete file.
        Raises UserError if the disk is full.
        """
        check_file_name(name)
        # A local draft renames within its own file system; a remote one uploads from scratch space.
        folder = Path(self.work) if self.is_local else Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        with (
            full_disk_explained(name, folder),
            tempfile.TemporaryDirectory(
                prefix=".partial-", dir=folder, ignore_cleanup_errors=True
            ) as scratch,
        ):
            draft_file = DraftFile(Path(scratch) / Path(name).name)
            yield draft_file
            self._keep(name, draft_file)

    def _keep(self, name: str, file: DraftFile) -> None:
        record = FileRecord(
            bytes=file.path.stat().st_size, sha256=sha256_of_file(file.path), figures=file.figures
        )
        path = self._path(name, record)
        if self.is_local:
            flush(file.path)
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            file.path.replace(path)
        else:
            self.filesystem.put_file(str(file.path), path)
        self.note(self._ledger_entry(name), record.model_dump_json())
        self.written[name] = record

    def path(self, name: str) -> str:
        """The path in the store of a file that this process wrote."""
        return self._path(name, self.written[name])

    def write(self, name: str, data: bytes) -> None:
        """Write the file `name` as `file` does, from memory."""
        with self.file(name) as file:
            file.path.write_bytes(data)

    def note(self, name: str, text: str) -> None:
        """Write a small file into the working folder, whole or not at all."""
        path = f"{self.work}/{name}"
        if not self.is_local:
            self.filesystem.pipe_file(path, text.encode())
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_to_disk(Path(path), text)

    def finished(self, name: str) -> dict[str, Any] | None:
        """Figures of `name` if it is whole, else None; on a local store its bytes are verified."""
        record = self._record_of_whole(name)
        if record is None or (self.is_local and not record.matches(Path(self._path(name, record)))):
            return None
        return record.figures

    def once(self, name: str, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The figures that `write(path)` returned when it wrote `name`, now or before."""
        figures = self.finished(name)
        if figures is None:
            with self.file(name) as file:
                figures = write(file.path)
                file.figures.update(figures)
        return figures

    def workspace(self) -> "Workspace":
        """Files beside the draft."""
        return Workspace(self.fingerprint, self.filesystem, self.work, self.work)

    def records(self, names: Iterable[str]) -> dict[str, FileRecord]:
        """The record of every file named; RuntimeError, naming it, if one is not whole."""
        records = {}
        for name in sorted(set(names)):
            record = self._record_of_whole(name)
            if record is None:
                raise RuntimeError(f"the build did not finish {name} in {self.root}")
            records[name] = record
        return records

    def _record_of_whole(self, name: str) -> FileRecord | None:
        """The record of `name` if a file of its size is there."""
        try:
            record = self.written.get(name) or FileRecord.model_validate_json(
                self.filesystem.cat_file(f"{self.work}/{self._ledger_entry(name)}")
            )
            is_whole = self.filesystem.size(self._path(name, record)) == record.bytes
        except (FileNotFoundError, ValidationError):
            return None
        return record if is_whole else None

    def _path(self, name: str, record: FileRecord) -> str:
        return f"{self.root}/{name if self.is_local else path_by_content(name, record)}"

    def _ledger_entry(self, name: str) -> str:
        return f"{self._LEDGER}/{quote(name, safe='')}.json"


class Workspace(Draft):
    """Files beside a draft, written and kept like its own but never published."""

    __slots__ = ()
    _LEDGER = ".ledger-of-work"

    def _path(self, name: str, record: FileRecord) -> str:
        return f"{self.root}/{name}"

    def mark(self, name: str, **figures: Any) -> None:
        """Record that the step `name` is done, and its figures."""
        with self.file(name) as record:
            record.path.touch()
            record.figures.update(figures)

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""
        data: bytes = self.filesystem.cat_file(f"{self.root}/{name}")
        return data

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A local path of the file `name`; what had to be fetched is removed on leaving."""
        path = f"{self.root}/{name}"
        if self.is_local:
            yield Path(path)
            return
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
            local = Path(scratch) / Path(name).name
            self.filesystem.get_file(path, str(local))
            yield local
