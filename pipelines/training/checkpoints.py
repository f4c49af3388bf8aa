"""A training run's checkpoints: stored while it trains, verified, the newest kept.

Each is a folder in any store. Its last file holds the size and SHA-256 of the others: a folder
without it is no checkpoint, and one with other contents is damaged.
"""

import logging
import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files
from pydantic import ValidationError

from pipelines.artifacts.access import flush, flush_folders, store_errors
from pipelines.artifacts.scratch import scratch_folder
from pipelines.config.errors import UserError
from pipelines.training.checkpoint_files import (
    Checkpoint,
    DamagedCheckpointError,
    files_of,
    verify,
    write_whole,
)

logger = logging.getLogger(__name__)

_PREFIX = "checkpoint_"
_ASIDE = "damaged-"  # before the name of one that nothing removes any more
_CHECKSUMS = "checksums.json"


class Checkpoints:
    """The checkpoints in `folder` of `filesystem`; no writer removes what another one adds.

    A thread stores them while training continues.
    """

    def __init__(self, folder: str, filesystem: FileSystem, num_kept: int = 2) -> None:
        self.folder = folder
        self._filesystem = filesystem
        self._num_kept = num_kept
        self._damaged: set[str] = set()
        # Folders of earlier writers, found at the first look.
        self._earlier: set[str] | None = None
        self._own: set[str] = set()
        self.damage: list[str] = []  # a sentence for each damaged one that was met
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._storing: Future[str] | None = None
        self._last: dict[str, float] = {}
        self.storing_seconds = 0.0  # that the last one took, also where the store did not take it

    def stored(self) -> list[Checkpoint]:
        """All that are complete, the newest first."""
        names = self._names()
        if self._earlier is None:
            self._earlier = names
        found = []
        for name in names - self._damaged:
            try:
                with self._filesystem.open_input_file(f"{self.folder}/{name}/{_CHECKSUMS}") as file:
                    found.append(Checkpoint.model_validate_json(file.read()))
            except FileNotFoundError:
                continue  # its writer ended before it was complete
            except ValidationError:
                self._damaged.add(name)
                self.damage.append(f"the checkpoint {name} is damaged ({_CHECKSUMS})")
        return sorted(found, key=lambda each: (each.step, each.name), reverse=True)

    def give_up(self, checkpoint: Checkpoint, reason: str) -> None:
        """Treat one as damaged: it is no longer listed, and will be removed."""
        self._damaged.add(checkpoint.name)
        self.damage.append(f"the checkpoint of step {checkpoint.step} is damaged ({reason})")

    def set_aside(self) -> None:
        """Keep the damaged ones from being removed until the training run has ended.

        If no checkpoint is whole the training run starts over, and a person may still rescue one.
        """
        for name in sorted(self._damaged & self._names()):
            source, target = f"{self.folder}/{name}", f"{self.folder}/{_ASIDE}{name}"
            if isinstance(self._filesystem, LocalFileSystem):
                self._filesystem.move(source, target)
                continue
            # An object store knows no folder that could be moved.
            filesystem = self._filesystem
            copy_files(
                source, target, source_filesystem=filesystem, destination_filesystem=filesystem
            )
            filesystem.delete_dir(source)
        self._damaged.clear()

    def aside(self) -> str:
        """Where they are kept, as a pattern for messages."""
        return f"{self.folder}/{_ASIDE}*"

    @contextmanager
    def opened(self, checkpoint: Checkpoint) -> Iterator[Path]:
        """A checkpoint in a local folder; raises DamagedCheckpointError where it is not whole.

        One in another store is copied to a temporary folder, and copied again if the first copy is
        not whole: the transfer or the disk may be at fault. Raises UserError if there is no room.
        """
        if isinstance(self._filesystem, LocalFileSystem):
            place = Path(self.folder) / checkpoint.name
            verify(place, checkpoint.files)
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
            with suppress(FileNotFoundError):  # which files are missing is said below
                copy_files(
                    f"{self.folder}/{checkpoint.name}", str(copy),
                    source_filesystem=self._filesystem, destination_filesystem=LocalFileSystem(),
                )  # fmt: skip
            verify(copy, checkpoint.files)
        except BaseException:
            shutil.rmtree(copy)
            raise
        return copy

    @contextmanager
    def named(self, name: str) -> Iterator[Path]:
        """The checkpoint in the folder `name`; raises UserError where it is damaged or gone."""
        found = [each for each in self.stored() if each.name == name]
        with ExitStack() as stack:
            try:
                if not found:
                    raise DamagedCheckpointError("it is gone")
                folder = stack.enter_context(self.opened(found[0]))
            except DamagedCheckpointError as error:
                raise UserError(
                    f"the checkpoint {name} is damaged: {error}; run again: training resumes "
                    "from the previous one"
                ) from error
            yield folder

    def store(self, draft: Path, *, step: int, is_regular: bool, loss: float | None) -> None:
        """Start storing the folder `draft`, which is then removed; `wait` before the next one.

        Afterwards all but the newest `num_kept` are removed.
        """
        self._storing = self._thread.submit(self._store, draft, step, is_regular, loss)

    def is_storing(self, seconds: float) -> bool:
        """Whether a checkpoint is still being stored after at most `seconds`."""
        return self._storing is not None and bool(wait([self._storing], seconds).not_done)

    def figures(self) -> dict[str, float]:
        """Bytes and time, in seconds since the epoch, of the one stored last.

        Empty until there is one.
        """
        return dict(self._last)

    def wait(self) -> str:
        """Wait for the one being stored; returns its name, empty without one.

        Raises what storing it raised.
        """
        storing, self._storing = self._storing, None
        return "" if storing is None else storing.result()

    def _store(self, draft: Path, step: int, is_regular: bool, loss: float | None) -> str:
        started = time.monotonic()
        name = f"{_PREFIX}{step:09d}-{secrets.token_hex(4)}"
        self._own.add(name)
        try:
            checkpoint = Checkpoint(
                name=name, step=step, is_regular=is_regular, loss=loss, files=files_of(draft)
            )
            path = f"{self.folder}/{name}"
            for folder in {str(Path(file).parent) for file in checkpoint.files}:
                self._filesystem.create_dir(f"{path}/{folder}", recursive=True)
            copy_files(
                str(draft), path,
                source_filesystem=LocalFileSystem(), destination_filesystem=self._filesystem,
            )  # fmt: skip
            self._commit(checkpoint)
            num_bytes = float(checkpoint.num_bytes)
            self._last = {"checkpoint/bytes": num_bytes, "checkpoint/stored_at": time.time()}
        except BaseException:
            with suppress(*store_errors()):  # on a full disk this makes room for the next one
                self._filesystem.delete_dir(f"{self.folder}/{name}")
            raise
        finally:
            shutil.rmtree(draft)
            self.storing_seconds = time.monotonic() - started
        try:
            self._remove_others(checkpoint)
        except store_errors() as error:
            logger.warning("some checkpoints stay that should not: %s", error)
        return name

    def _commit(self, checkpoint: Checkpoint) -> None:
        """Write the last file once the others would survive a power failure."""
        path = f"{self.folder}/{checkpoint.name}"
        is_local = isinstance(self._filesystem, LocalFileSystem)
        if is_local:
            for name in checkpoint.files:
                flush(Path(path) / name)
            flush_folders(Path(path))
        write_whole(self._filesystem, f"{path}/{_CHECKSUMS}", checkpoint.model_dump_json())
        if is_local:
            flush(Path(self.folder))  # others are removed next, which only this one replaces

    def _remove_others(self, newest: Checkpoint) -> None:
        stored = self.stored()
        whole = [each for each in stored if each.step != newest.step or each == newest]
        kept = {each.name for each in whole[: self._num_kept]}
        # A new one may be another writer's: a second builder's on an object store, or that of a
        # process that the cluster started instead of this one.
        removable = self._own | self._damaged | (self._earlier or set())
        for name in self._names() & removable - kept:
            self._filesystem.delete_dir(f"{self.folder}/{name}")

    def _names(self) -> set[str]:
        selector = FileSelector(self.folder, allow_not_found=True)
        entries = self._filesystem.get_file_info(selector)
        folders = [entry for entry in entries if entry.type == FileType.Directory]
        names = [Path(entry.path).name for entry in folders]
        return {name for name in names if name.startswith(_PREFIX)}
