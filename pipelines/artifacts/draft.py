"""A draft: an artifact being built, kept file by file, so that a stopped stage resumes."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from pipelines.artifacts.access import flush, full_disk_explained, write_to_disk
from pipelines.artifacts.claims import Claim
from pipelines.artifacts.manifest import (
    INPUTS_NAME,
    FileRecord,
    check_file_name,
    path_by_content,
    sha256_of_file,
)
from pipelines.artifacts.scratch import scratch_folder


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

    A draft can be pickled, so that tasks on any node write their own files through it. It belongs
    to one attempt at the artifact and never shows another builder's files.
    """

    fingerprint: str  # of the artifact that is built
    filesystem: AbstractFileSystem
    root: str  # of its files
    work: str  # a folder for a stage's working state; removed on publishing
    claim: Claim | None = None  # on an object store: the attempt that these files belong to

    _LEDGER: ClassVar = ".ledger-of-draft"  # in `work`, with an entry for each finished file

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    @contextmanager
    def file(self, name: str) -> Iterator[DraftFile]:
        """Yield a local path to write `name` to; on leaving without an error it is kept.

        If the process dies meanwhile, neither readers nor `finished` see the incomplete file.
        Raises ClaimLostError if another process has taken over the attempt, UserError if the disk
        is full.
        """
        target = f"{self.root}/{check_file_name(name)}"
        # A local draft renames within its own file system; a remote one uploads from scratch space.
        beside = Path(target).parent if self.is_local else None
        with full_disk_explained(name, beside or tempfile.gettempdir()):
            if beside is None:
                scratch = scratch_folder()
            else:
                beside.mkdir(parents=True, exist_ok=True)
                scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=beside))
            try:
                draft_file = DraftFile(scratch / Path(name).name)
                yield draft_file
                self._keep(name, draft_file)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def _keep(self, name: str, written: DraftFile) -> None:
        record = FileRecord(
            bytes=written.path.stat().st_size,
            sha256=sha256_of_file(written.path),
            figures=written.figures,
        )
        if self.claim is not None:
            self.claim.check()
        path = self._path(name, record)
        if self.is_local:
            flush(written.path)
            written.path.replace(path)
        else:
            self.filesystem.put_file(str(written.path), path)
        self.note(self._ledger_entry(name), record.model_dump_json())

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

    def note_inputs(self, inputs: Mapping[str, str]) -> None:
        """Record what this build reads, so that it is not pruned meanwhile."""
        # The fingerprint names the same inputs each time.
        if not self.filesystem.exists(f"{self.work}/{INPUTS_NAME}"):
            self.note(INPUTS_NAME, json.dumps(dict(inputs)))

    def finished(self, name: str) -> dict[str, Any] | None:
        """Figures of `name` if it is whole and its bytes still verify, else None."""
        record = self._record_of_whole(name)
        if record is None:
            return None
        if self.is_local and sha256_of_file(Path(self._path(name, record))) != record.sha256:
            return None
        return record.figures

    def once(self, name: str, write: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """The figures that `write(path)` returned when it wrote `name`, now or before."""
        done = self.finished(name)
        if done is None:
            with self.file(name) as file:
                done = write(file.path)
                file.figures.update(done)
        return done

    def workspace(self) -> "Workspace":
        return Workspace(self.fingerprint, self.filesystem, self.work, self.work, self.claim)

    def records(self, names: Iterable[str]) -> dict[str, FileRecord]:
        """The record of every file named, each of them whole.

        Raises RuntimeError, naming the file, if one is missing.
        """
        records = {}
        for name in sorted(set(names)):
            record = self._record_of_whole(name)
            if record is None:
                raise RuntimeError(f"the build did not finish {name} in {self.root}")
            records[name] = record
        return records

    def _record_of_whole(self, name: str) -> FileRecord | None:
        record = self._read_ledger(name)
        if record is None:
            return None
        path = self._path(name, record)
        try:
            return record if self.filesystem.size(path) == record.bytes else None
        except FileNotFoundError:
            return None

    def _path(self, name: str, record: FileRecord) -> str:
        return f"{self.root}/{name if self.is_local else path_by_content(name, record)}"

    def _ledger_entry(self, name: str) -> str:
        return f"{self._LEDGER}/{quote(name, safe='')}.json"

    def _read_ledger(self, name: str) -> FileRecord | None:
        try:
            entry = self.filesystem.cat_file(f"{self.work}/{self._ledger_entry(name)}")
            return FileRecord.model_validate_json(entry)
        except (FileNotFoundError, ValidationError):
            return None  # never finished


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
        scratch = scratch_folder()
        try:
            local = scratch / Path(name).name
            self.filesystem.get_file(path, str(local))
            yield local
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def remove_partial_files(folder: Path) -> None:
    """Remove the incomplete files of a killed run from `folder`."""
    for partial in sorted(folder.rglob(".partial-*")):
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink()


def keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove from `folder` every file not named, and the directories that this empties."""
    wanted = {folder / name for name in names}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in wanted:
            path.unlink()
