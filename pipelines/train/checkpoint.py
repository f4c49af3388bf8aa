"""A training run's checkpoints: saved while it trains, verified when read, the two newest kept.

Each is a folder in any store. Its last file holds the SHA-256 of the others: a folder without it is
no checkpoint, and one with other contents is damaged.
"""

import errno
import json
import logging
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
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

from bert_core.model.catalogue import TrainableModel
from bert_core.model.rows import CODE_FILE
from bert_core.model.task_models import TaskModel
from bert_core.training.arena import this_rank
from bert_core.training.optimizer import Optimizer
from bert_core.training.state import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Position,
    load_checkpoint,
    load_model,
    save_checkpoint,
    save_model,
)
from bert_core.training.temperature import divide_logits
from bert_core.vocabulary import SAVED_FILES, WordPieceTokenizer
from pipelines.errors import UserError, first_line
from pipelines.store import Draft, sha256_of_file
from pipelines.store.access import (
    FULL,
    flush,
    flush_folders,
    nearest_existing,
    scratch_folder,
    store_errors,
    write_to_disk,
)
from pipelines.train.metrics import BEST_FOLDER, HISTORY_FILE, EarlyStopping, Telemetry
from pipelines.train.ranks import all_gather, broadcast

logger = logging.getLogger(__name__)

# Inside a checkpoint.
MODEL_FOLDER = "model"  # to resume from

# What `publish_model` puts into an artifact.
MODEL_FILES = (WEIGHTS_FILE, CONFIG_FILE, *SAVED_FILES, HISTORY_FILE)

# How long a due checkpoint waits for the previous one, while the other ranks wait for rank 0.
PENDING_SAVE_SECONDS = 60.0
_PREFIX = "checkpoint_"
_CHECKSUMS = "checksums.json"
_NUM_KEPT = 2
# Errors of a disk that would come again: a replaced worker would only repeat the same steps.
_REFUSALS = frozenset((*FULL, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM))


class CheckpointFolder(NamedTuple):
    """Where checkpoints lie; the next process that builds the artifact finds them there."""

    path: str
    filesystem: FileSystem

    @classmethod
    def of(cls, draft: Draft) -> "CheckpointFolder":
        """The folder of a draft's working state."""
        if draft.is_local:
            return cls(draft.work, LocalFileSystem())
        return cls(draft.work, PyFileSystem(FSSpecHandler(draft.filesystem)))


class Checkpoint(BaseModel):
    """A stored checkpoint, as described by its last file."""

    model_config = ConfigDict(frozen=True)

    name: str  # of its folder
    step: int  # all before it are done
    files: dict[str, str]  # SHA-256 of each


class DamagedCheckpointError(Exception):
    """A file of a checkpoint differs from what was stored."""


class Checkpoints:
    """The checkpoints in a folder. A thread stores them while training continues."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self.folder, self._filesystem = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._storing: Future[str] | None = None

    @property
    def is_local(self) -> bool:
        """Whether they lie on this node's disks."""
        return isinstance(self._filesystem, LocalFileSystem)

    def stored(self) -> list[Checkpoint]:
        """All that are complete, the newest first."""
        complete = []
        for name in self._names():
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
        """A checkpoint in a local folder; raises DamagedCheckpointError where it is not whole."""
        place = f"{self.folder}/{checkpoint.name}"
        if self.is_local:
            _verify(Path(place), checkpoint)
            yield Path(place)
            return
        copy = scratch_folder()
        try:
            with suppress(FileNotFoundError):  # `_verify` names the file that is missing
                copy_files(
                    place, str(copy),
                    source_filesystem=self._filesystem, destination_filesystem=LocalFileSystem(),
                )  # fmt: skip
            _verify(copy, checkpoint)
            yield copy
        finally:
            shutil.rmtree(copy)

    def store(self, draft: Path, step: int) -> None:
        """Start storing the folder `draft`, which is then removed; `wait` before the next one.

        Afterwards all but the two newest are removed.
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
        try:
            files = {
                file.relative_to(draft).as_posix(): sha256_of_file(file)
                for file in sorted(draft.rglob("*"))
                if file.is_file()
            }
            for folder in {str(Path(file).parent) for file in files}:
                self._filesystem.create_dir(f"{path}/{folder}", recursive=True)
            copy_files(
                str(draft), path,
                source_filesystem=LocalFileSystem(), destination_filesystem=self._filesystem,
            )  # fmt: skip
            self._commit(path, Checkpoint(name=name, step=step, files=files))
        except BaseException:
            with suppress(*store_errors()):  # on a full disk this makes room for the next one
                self._filesystem.delete_dir(path)
            raise
        finally:
            shutil.rmtree(draft)
        try:
            self._remove_older()
        except store_errors() as error:
            logger.warning("some checkpoints stay that should not: %s", error)
        return name

    def _commit(self, path: str, checkpoint: Checkpoint) -> None:
        """Write the last file once the others would survive a power failure."""
        text = checkpoint.model_dump_json()
        if self.is_local:
            for name in checkpoint.files:
                flush(Path(path) / name)
            flush_folders(Path(path))
            write_to_disk(Path(path) / _CHECKSUMS, text)
            flush(Path(self.folder))  # others are removed next, which only this one replaces
        else:
            with self._filesystem.open_output_stream(f"{path}/{_CHECKSUMS}") as file:
                file.write(text.encode())

    def _remove_older(self) -> None:
        """Remove what is older than the newest, but for the one before it.

        What is newer and incomplete is another builder's, which writes it at this moment.
        """
        newest, *others = self.stored()
        kept = {each.name for each in others[: _NUM_KEPT - 1]}
        for name in self._names() - kept:
            if name < newest.name:
                self._filesystem.delete_dir(f"{self.folder}/{name}")

    def _names(self) -> set[str]:
        selector = FileSelector(self.folder, allow_not_found=True)
        entries = self._filesystem.get_file_info(selector)
        folders = [entry for entry in entries if entry.type == FileType.Directory]
        names = [Path(entry.path).name for entry in folders]
        return {name for name in names if name.startswith(_PREFIX)}


def _verify(folder: Path, checkpoint: Checkpoint) -> None:
    """Raise DamagedCheckpointError for the first file that `folder` lacks or has changed."""
    for name, checksum in checkpoint.files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{name} is missing")
        if sha256_of_file(path) != checksum:
            raise DamagedCheckpointError(f"{name} has another SHA-256")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Everything of one rank that a checkpoint holds, and where checkpoints are."""

    model: TrainableModel
    optimizer: Optimizer
    telemetry: Telemetry
    checkpoints: Checkpoints
    is_writer: bool
    first_of_node: int  # the rank that reads a checkpoint for all ranks of this node
    best: EarlyStopping | None = None  # where the training run may stop early

    @property
    def device(self) -> torch.device:
        """Where the ranks exchange what they have to say."""
        return self.optimizer.arena.values.device


def save(state: TrainState, position: Position) -> None:
    """Write a checkpoint that is due, and let it be stored meanwhile. All ranks call this.

    It is left out, with a warning, if the previous one is not stored within a minute, and if the
    temporary folder cannot take it.
    """
    warn = state.telemetry.warn
    if state.checkpoints.is_storing(PENDING_SAVE_SECONDS):
        warn(
            f"the checkpoint of step {position.step} is left out: the previous one is still being "
            "copied to the store"
        )
        return
    _finish_previous(state)
    try:
        _write(state, position)
    except OSError as error:
        warn(
            f"the checkpoint of step {position.step} is left out: the temporary folder "
            f"{tempfile.gettempdir()} cannot take it ({first_line(error)})"
        )


def save_at_end(state: TrainState, position: Position) -> str:
    """Store the position at which the training run ends; returns the name of its checkpoint.

    All ranks call this. Raises, on all of them, UserError if a full or read-only disk refuses it,
    and OSError if the store does not answer for as long as its client tries.
    """
    _finish_previous(state)
    name = fault = ""
    is_refused = False
    try:
        _write(state, position)
        name = state.checkpoints.wait()
    except store_errors() as error:
        step = max((each.step for each in state.checkpoints.stored()), default=0)
        fault = (
            f"the checkpoint of step {position.step} could not be stored in "
            f"{state.checkpoints.folder}: {first_line(error)}; free some space there and in "
            f"{tempfile.gettempdir()}, or fix the store, and run again: the training run resumes "
            f"from step {step}"
        )
        is_refused = isinstance(error, OSError) and error.errno in _REFUSALS
    name, fault, is_refused = broadcast((name, fault, is_refused), state.device)
    if fault:
        raise UserError(fault) if is_refused else OSError(fault)
    return name


def _finish_previous(state: TrainState) -> None:
    try:
        state.checkpoints.wait()
    except store_errors() as error:
        state.telemetry.warn(f"a checkpoint could not be stored ({first_line(error)})")


def _write(state: TrainState, position: Position) -> None:
    """Write a checkpoint into a temporary folder, and start to store it; OSError for a full one."""
    model, optimizer = state.model, state.optimizer
    if not state.is_writer:
        save_checkpoint(Path(), model, optimizer, position, is_writer=False)
        return
    folder = scratch_folder()
    try:
        save_checkpoint(folder / MODEL_FOLDER, model, optimizer, position)
        if state.best is not None:
            state.best.save(folder, model)
        state.telemetry.save(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    state.checkpoints.store(folder, position.step)


def restore(state: TrainState, seed: int) -> Position:
    """Put everything where the newest checkpoint left it that is whole; returns the position.

    A damaged one is passed over with a warning. The writer's list counts. The first rank of each
    node reads for all ranks of the node; all ranks call this.
    """
    stored = broadcast(state.checkpoints.stored() if state.is_writer else [], state.device)
    for checkpoint in stored:
        with ExitStack() as stack:
            folder = damage = ""
            if this_rank() == state.first_of_node:
                try:
                    folder = str(stack.enter_context(state.checkpoints.opened(checkpoint)))
                except DamagedCheckpointError as error:
                    damage = str(error)
            folders, damages = zip(*all_gather((folder, damage)), strict=True)
            if any(damages):
                state.telemetry.warn(
                    f"the checkpoint of step {checkpoint.step} is damaged "
                    f"({next(filter(None, damages))}): the previous one is used, or training "
                    "starts over"
                )
                continue
            whole = Path(folders[state.first_of_node])
            position = load_checkpoint(whole / MODEL_FOLDER, state.model, state.optimizer)
            state.telemetry.restore(whole, position.step)
            if state.best is not None:
                state.best.restore(whole)
            all_gather(None)  # a rank that still reads keeps the folders of all
            return position
    return Position(seed=seed, step=0)


def check_disk_space(stage: str, state: TrainState) -> None:
    """Raise UserError if a disk lacks room for the checkpoints that are kept, and the artifact.

    Besides two there may be one that a stop left and one on its way. Each is first written into
    the temporary folder.
    """
    model_bytes = 4 * sum(parameter.numel() for parameter in state.model.parameters())
    checkpoint_bytes = model_bytes * (1 if state.best is None else 2)
    checkpoint_bytes += 4 * state.optimizer.num_moments
    needs = [(Path(tempfile.gettempdir()), checkpoint_bytes + model_bytes)]
    if state.checkpoints.is_local:
        folder = nearest_existing(Path(state.checkpoints.folder))
        needs.append((folder, 4 * checkpoint_bytes + 2 * model_bytes))
    for path, num_bytes in needs:
        free = shutil.disk_usage(path).free
        if free < num_bytes:
            raise UserError(
                f"the disk of {path} is too full for the checkpoints of {stage} and its model: "
                f"{num_bytes / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free; free "
                "some, choose another runtime.store or TMPDIR, or lower size"
            )


def publish_model(
    draft: Draft,
    checkpoint: Path,
    tokenizer: WordPieceTokenizer,
    result: Mapping[str, Any],
    temperature: float = 1.0,
) -> None:
    """Put the model, its tokenizer and its training curve into the artifact.

    The model is the best one where the last checkpoint holds one, else the last one. Its logits are
    divided by `temperature`.
    """
    best = checkpoint / BEST_FOLDER
    folder = best if best.is_dir() else checkpoint / MODEL_FOLDER
    with tempfile.TemporaryDirectory(prefix="bertsmith-calibrated-") as scratch:
        if temperature != 1.0:
            model = load_model(folder)
            divide_logits(cast(TaskModel, model), temperature)
            folder = Path(scratch)
            save_model(folder, model)
        for name in (WEIGHTS_FILE, CONFIG_FILE, CODE_FILE):
            if (folder / name).is_file():
                with draft.file(name) as target:
                    shutil.copyfile(folder / name, target.path)
    for name, text in tokenizer.files().items():
        draft.write(name, text.encode())
    draft.write(HISTORY_FILE, json.dumps(result["history"]).encode())
