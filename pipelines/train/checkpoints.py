"""A training run's checkpoints: stored while it trains, verified when read, the two newest kept.

Each is a folder in any store. Its last file holds the size and SHA-256 of the others: a folder
without it is no checkpoint, and one with other contents is damaged.
"""

import logging
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pyarrow.fs import (
    FileSelector,
    FileSystem,
    FileType,
    FSSpecHandler,
    LocalFileSystem,
    PyFileSystem,
    copy_files,
)
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.store import sha256_of_file
from pipelines.store.access import flush, flush_folders, scratch_folder, store_errors, write_to_disk
from pipelines.store.draft import Draft

logger = logging.getLogger(__name__)

_PREFIX = "checkpoint_"
_CHECKSUMS = "checksums.json"


class CheckpointFolder(NamedTuple):
    """Where checkpoints lie; the next process that builds the artifact finds them there."""

    path: str
    filesystem: FileSystem

    @classmethod
    def of(cls, draft: Draft) -> "CheckpointFolder":
        if draft.is_local:
            return cls(draft.work, LocalFileSystem())
        return cls(draft.work, PyFileSystem(FSSpecHandler(draft.filesystem)))

    def below(self, name: str) -> "CheckpointFolder":
        """The folder `name` in it."""
        return CheckpointFolder(f"{self.path}/{name}", self.filesystem)


class StoredFile(BaseModel):
    """Size and checksum of a file when it was stored."""

    model_config = ConfigDict(frozen=True)

    size: int  # bytes
    sha256: str


class Checkpoint(BaseModel):
    """A stored checkpoint, as described by its last file."""

    model_config = ConfigDict(frozen=True)

    name: str  # of its folder
    step: int  # all before it are done
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(each.size for each in self.files.values())


class DamagedCheckpointError(Exception):
    """A file of a checkpoint differs from what was stored."""


class Checkpoints:
    """The checkpoints in a folder; no writer removes what another one adds meanwhile.

    A thread stores them while training continues.
    """

    def __init__(self, folder: CheckpointFolder, num_kept: int = 2) -> None:
        self.folder, self._filesystem = folder
        self._num_kept = num_kept
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._storing: Future[str] | None = None
        # What this writer may remove: its own, and what was there at its first look.
        self._own: set[str] = set()
        self._earlier: set[str] | None = None

    def stored(self) -> list[Checkpoint]:
        """All that are complete, the newest first."""
        complete = []
        names = self._names()
        if self._earlier is None:
            self._earlier = names
        for name in names:
            try:
                with self._filesystem.open_input_file(f"{self.folder}/{name}/{_CHECKSUMS}") as file:
                    complete.append(Checkpoint.model_validate_json(file.read()))
            except FileNotFoundError:
                continue  # its writer ended before it was complete
            except ValidationError:
                logger.warning("the checkpoint %s is damaged (%s)", name, _CHECKSUMS)
        return sorted(complete, key=lambda each: (each.step, each.name), reverse=True)

    @contextmanager
    def opened(self, checkpoint: Checkpoint) -> Iterator[Path]:
        """A checkpoint in a local folder; raises DamagedCheckpointError where it is not whole.

        One in another store is copied to a temporary folder, and copied again if the first copy is
        not whole: the transfer or the disk may be at fault. Raises UserError if there is no room.
        """
        if isinstance(self._filesystem, LocalFileSystem):
            place = Path(self.folder) / checkpoint.name
            _verify(place, checkpoint)
            yield place
            return
        try:
            copy = self._copied(checkpoint)
        except DamagedCheckpointError as error:
            logger.warning("a copy of the checkpoint %s: %s; again", checkpoint.name, error)
            copy = self._copied(checkpoint)
        try:
            yield copy
        finally:
            shutil.rmtree(copy)

    def _copied(self, checkpoint: Checkpoint) -> Path:
        copy = scratch_folder(checkpoint.num_bytes)
        try:
            with suppress(FileNotFoundError):  # `_verify` names the file that is missing
                copy_files(
                    f"{self.folder}/{checkpoint.name}", str(copy),
                    source_filesystem=self._filesystem, destination_filesystem=LocalFileSystem(),
                )  # fmt: skip
            _verify(copy, checkpoint)
        except BaseException:
            shutil.rmtree(copy)
            raise
        return copy

    def store(self, draft: Path, step: int) -> None:
        """Start storing the folder `draft`, which is then removed; `wait` before the next one.

        Afterwards all but the newest `num_kept` are removed.
        """
        self._storing = self._thread.submit(self._store, draft, step)

    def is_storing(self, seconds: float) -> bool:
        """Whether a checkpoint is still being stored after at most `seconds`."""
        return self._storing is not None and bool(wait([self._storing], seconds).not_done)

    def wait(self) -> str:
        """Wait for the one being stored; returns its name, empty without one.

        Raises what storing it raised.
        """
        storing, self._storing = self._storing, None
        return "" if storing is None else storing.result()

    def _store(self, draft: Path, step: int) -> str:
        name = f"{_PREFIX}{step:09d}-{secrets.token_hex(4)}"
        path = f"{self.folder}/{name}"
        self._own.add(name)
        try:
            checkpoint = Checkpoint(name=name, step=step, files=_files_of(draft))
            for folder in {str(Path(file).parent) for file in checkpoint.files}:
                self._filesystem.create_dir(f"{path}/{folder}", recursive=True)
            copy_files(
                str(draft), path,
                source_filesystem=LocalFileSystem(), destination_filesystem=self._filesystem,
            )  # fmt: skip
            self._commit(path, checkpoint)
        except BaseException:
            with suppress(*store_errors()):  # on a full disk this makes room for the next one
                self._filesystem.delete_dir(path)
            raise
        finally:
            shutil.rmtree(draft)
        try:
            self._remove_others(checkpoint)
        except store_errors() as error:
            logger.warning("some checkpoints stay that should not: %s", error)
        return name

    def _commit(self, path: str, checkpoint: Checkpoint) -> None:
        """Write the last file once the others would survive a power failure."""
        text = checkpoint.model_dump_json()
        if not isinstance(self._filesystem, LocalFileSystem):
            with self._filesystem.open_output_stream(f"{path}/{_CHECKSUMS}") as file:
                file.write(text.encode())
            return
        for name in checkpoint.files:
            flush(Path(path) / name)
        flush_folders(Path(path))
        write_to_disk(Path(path) / _CHECKSUMS, text)
        flush(Path(self.folder))  # others are removed next, which only this one replaces

    def _remove_others(self, newest: Checkpoint) -> None:
        by_step = {each.step: each.name for each in reversed(self.stored())} | {
            newest.step: newest.name
        }
        kept = {by_step[step] for step in sorted(by_step, reverse=True)[: self._num_kept]}
        # Others are another builder's, or of a process that the cluster started in place of this.
        for name in self._names() & (self._own | (self._earlier or set())) - kept:
            self._filesystem.delete_dir(f"{self.folder}/{name}")

    def _names(self) -> set[str]:
        selector = FileSelector(self.folder, allow_not_found=True)
        entries = self._filesystem.get_file_info(selector)
        folders = [entry for entry in entries if entry.type == FileType.Directory]
        names = [Path(entry.path).name for entry in folders]
        return {name for name in names if name.startswith(_PREFIX)}


def _files_of(folder: Path) -> dict[str, StoredFile]:
    """Every file below `folder`, by its path from there."""
    return {
        path.relative_to(folder).as_posix(): StoredFile(
            size=path.stat().st_size, sha256=sha256_of_file(path)
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _verify(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise DamagedCheckpointError for the first file that `folder` lacks or has changed."""
    for name, expected in checkpoint.files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{name} is missing")
        if path.stat().st_size != expected.size:
            raise DamagedCheckpointError(
                f"{name} has {path.stat().st_size} bytes of {expected.size}"
            )
        if sha256_of_file(path) != expected.sha256:
            raise DamagedCheckpointError(f"{name} has another SHA-256")
