"""A draft: an artifact in the making, kept file by file so that an interrupted stage goes on."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import ValidationError

from pipelines.artifacts.fingerprint import sha256_of_file
from pipelines.artifacts.manifest import FileRecord
from pipelines.core.errors import UserError

LEDGER_FOLDER = ".ledger"


@dataclass(slots=True)
class DraftFile:
    """A file being written: write to `path`, count into `figures`."""

    path: Path
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draft:
    """Where a stage writes its files; each appears whole, with a ledger entry, or not at all.

    A draft pickles, so that tasks on any node write their own files through it. On a local store
    `root` is a hidden folder beside the artifact; on an object store it is the artifact's own
    prefix, which no reader looks at before its manifest is there.
    """

    fingerprint: str  # of the artifact in the making
    filesystem: AbstractFileSystem
    root: str
    work_url: str  # for a stage's working state (training checkpoints); removed on publishing

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    @contextmanager
    def file(self, name: str) -> Iterator[DraftFile]:
        """Yield a local path to write `name` to; on leaving without an error it is published.

        A file that was being written when the process died leaves nothing that a reader or
        `finished` would take for whole.
        """
        target = f"{self.root}/{name}"
        # A local draft renames within its own file system; a remote one uploads from scratch space.
        beside = Path(target).parent if self.is_local else None
        if beside is not None:
            beside.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=beside))
        try:
            draft_file = DraftFile(scratch / Path(name).name)
            yield draft_file
            record = FileRecord(
                bytes=draft_file.path.stat().st_size,
                sha256=sha256_of_file(draft_file.path),
                figures=draft_file.figures,
            )
            if self.is_local:
                _flush_to_disk(draft_file.path)
                draft_file.path.replace(target)
            else:
                self.filesystem.put_file(str(draft_file.path), target)
            self._write_ledger(name, record)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"the disk must have room for {name}, but {scratch} is full; free some space "
                    "and run again: files that were finished are kept"
                ) from error
            raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def finished(self, name: str) -> dict[str, Any] | None:
        """Figures of `name` if it is whole and its bytes still verify, else None."""
        record = self._read_ledger(name)
        if record is None:
            return None
        path = f"{self.root}/{name}"
        if not self.filesystem.exists(path) or self.filesystem.size(path) != record.bytes:
            return None
        if self.is_local and sha256_of_file(Path(path)) != record.sha256:
            return None
        return record.figures

    def records(self) -> dict[str, FileRecord]:
        """Every finished file by name, sorted."""
        ledger = f"{self.root}/{LEDGER_FOLDER}"
        if not self.filesystem.exists(ledger):
            return {}
        self.filesystem.invalidate_cache(ledger)
        entries = self.filesystem.ls(ledger, detail=False)
        names = sorted(unquote(Path(entry).name.removesuffix(".json")) for entry in entries)
        records = {name: self._read_ledger(name) for name in names}
        return {name: record for name, record in records.items() if record is not None}

    def _ledger_path(self, name: str) -> str:
        return f"{self.root}/{LEDGER_FOLDER}/{quote(name, safe='')}.json"

    def _write_ledger(self, name: str, record: FileRecord) -> None:
        path = self._ledger_path(name)
        if not self.is_local:
            self.filesystem.pipe_file(path, record.model_dump_json().encode())
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        partial = Path(f"{path}.partial-{os.getpid()}")
        partial.write_text(record.model_dump_json())
        partial.replace(path)

    def _read_ledger(self, name: str) -> FileRecord | None:
        try:
            return FileRecord.model_validate_json(self.filesystem.cat_file(self._ledger_path(name)))
        except (FileNotFoundError, ValidationError):
            return None  # never finished


def _flush_to_disk(path: Path) -> None:
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())
