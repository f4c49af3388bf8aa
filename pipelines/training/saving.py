"""The state of a rank, saved to checkpoints while training continues."""

import errno
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from bert_core.model.catalogue import TrainableModel
from bert_core.training.optimizer import Optimizer
from bert_core.training.state import Position, save_checkpoint, save_model
from pipelines.artifacts.access import FULL, store_errors
from pipelines.artifacts.scratch import scratch_folder
from pipelines.config.errors import UserError, first_line
from pipelines.training.checkpoint_files import AVERAGED_FOLDER, MODEL_FOLDER
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.curve import Best, Telemetry
from pipelines.training.ranks import broadcast

logger = logging.getLogger(__name__)

# How long a due checkpoint waits for the previous one, while the other ranks wait for rank 0.
PATIENCE_SECONDS = 60.0
_LAST_TRIES = 3
_POLL_SECONDS = 10.0
# Errors of a disk that would come again: a replaced worker would only repeat the same steps.
_REFUSALS = frozenset((*FULL, errno.EFBIG, errno.EROFS))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Everything of one rank that a checkpoint holds, and where checkpoints are."""

    model: TrainableModel
    optimizer: Optimizer
    telemetry: Telemetry
    checkpoints: Checkpoints
    is_writer: bool
    node: str  # of this rank; those of one node read one copy of a checkpoint
    best: Best | None = None  # where the training run may stop early

    @property
    def device(self) -> torch.device:
        """Where the ranks exchange what they have to say."""
        return self.optimizer.arena.values.device


class Fault(NamedTuple):
    """Why a checkpoint was not written or not stored."""

    reason: str
    is_refusal: bool  # trying again would not help

    @classmethod
    def of(cls, error: Exception) -> "Fault":
        """What `error` says, in a line."""
        is_refusal = isinstance(error, OSError) and error.errno in _REFUSALS
        return cls(first_line(error), is_refusal or isinstance(error, PermissionError))


class End(NamedTuple):
    """Where a training run ended."""

    position: Position
    is_last: bool  # not stopped before
    is_saved: bool  # handed over to be stored


def save(state: TrainState, position: Position, *, is_last: bool, is_regular: bool = True) -> bool:
    """Write the checkpoint that is due after a step, and let it be stored meanwhile.

    If the previous one is not stored within a minute this one is left out, on all ranks, and False
    is returned; the last one waits. One that the temporary folder cannot take is left out as well,
    and `save_at_end` tries the last one again. All ranks call this. Raises SkippedStepsError if
    the guard halted the training run.
    """
    seconds = 0.0 if is_last else PATIENCE_SECONDS
    is_storing = state.is_writer and state.checkpoints.is_storing(seconds)
    if not is_last and broadcast(is_storing, state.device):
        state.telemetry.warn(
            f"the checkpoint of step {position.step} is left out: the previous one is still being "
            "copied to the store"
        )
        return False
    return _write(state, position, is_last=is_last, is_regular=is_regular) is None


def _write(
    state: TrainState, position: Position, *, is_last: bool, is_regular: bool
) -> Fault | None:
    """Write a checkpoint here and hand it over to be stored, once the one before is.

    All ranks call this. Returns why, on all of them, where the writer's disk does not take it.
    """
    model, optimizer, telemetry = state.model, state.optimizer, state.telemetry
    store_waiting(state)
    faults: list[Fault] = []
    folder: Path | None = None
    try:
        with _noted(faults):
            # Not a folder that ends with a block: the thread that stores it removes it.
            folder = scratch_folder() if state.is_writer else None
        # A writer without a folder continues too: the others wait for its share.
        with _noted(faults):
            target = (folder or Path()) / MODEL_FOLDER
            save_checkpoint(target, model, optimizer, position, is_writer=folder is not None)
        averages = is_last and optimizer.config.averaging_decay is not None
        with optimizer.averaged() if averages else nullcontext(), _noted(faults):
            if folder and averages and not faults:
                save_model(folder / AVERAGED_FOLDER, model)
        with _noted(faults):
            if folder and state.best is not None and not faults:
                state.best.save(folder, model)
            if folder and not faults:
                telemetry.save(folder)
    except BaseException:
        if folder:
            shutil.rmtree(folder)
        raise
    fault = broadcast(faults[0] if faults else None, state.device)
    if fault and folder:
        shutil.rmtree(folder)
    if fault:
        telemetry.warn(
            f"the checkpoint of step {position.step} is left out: the temporary folder "
            f"{tempfile.gettempdir()} cannot take it ({fault.reason})"
        )
        return fault
    if folder:
        state.checkpoints.store(
            folder, step=position.step, is_regular=is_regular,
            loss=telemetry.heldout_loss(position.step),
        )  # fmt: skip
    return None


@contextmanager
def _noted(faults: list[Fault]) -> Iterator[None]:
    """Collect errors of the disk in the block, and continue after it."""
    try:
        yield
    except OSError as error:
        faults.append(Fault.of(error))


def store_waiting(state: TrainState) -> str | Fault:
    """Wait for the checkpoint that is being stored; returns its name, or why it is not there.

    The name is empty if none was being stored. All ranks call this. If the store does not answer,
    this checkpoint is lost with a warning, and training continues.
    """
    # In short waits: a rank that waited for one message would give up after half an hour, and a
    # large checkpoint may take longer to a slow store.
    while broadcast(state.is_writer and state.checkpoints.is_storing(_POLL_SECONDS), state.device):
        pass
    stored: str | Fault
    try:
        stored = state.checkpoints.wait()
    except store_errors() as error:
        stored = Fault.of(error)
        logger.warning("a checkpoint could not be stored: %s", error)
        state.telemetry.warn(f"a checkpoint could not be stored ({stored.reason})")
    return broadcast(stored, state.device)


def save_at_end(state: TrainState, position: Position, is_last: bool, is_saved: bool) -> str:
    """Store the position at which the training run ends; returns the name of its checkpoint.

    `is_saved` says that it is being stored already. All ranks call this. Raises, on all of them,
    UserError if a full or read-only disk refuses it, and OSError if the store does not answer for
    as long as its client tries.
    """
    stored: str | Fault | None = store_waiting(state) if is_saved else None
    for _ in range(_LAST_TRIES):
        if isinstance(stored, str) and stored:
            return stored
        if isinstance(stored, Fault) and stored.is_refusal:
            break
        stored = _write(state, position, is_last=is_last, is_regular=is_last or is_saved)
        stored = stored or store_waiting(state)
    if isinstance(stored, str) and stored:
        return stored
    fault = stored if isinstance(stored, Fault) else Fault("it was not handed over", False)
    sentence = broadcast(_lost(state, position, fault), state.device)
    raise UserError(sentence) if fault.is_refusal else OSError(sentence)


def _lost(state: TrainState, position: Position, fault: Fault) -> str:
    """The message that steps since the previous checkpoint are lost; on the writer alone."""
    if not state.is_writer:
        return ""
    checkpoints = state.checkpoints
    step = max((each.step for each in checkpoints.stored()), default=0)
    return (
        f"the checkpoint of step {position.step} could not be stored in {checkpoints.folder}: "
        f"{fault.reason}; free some space there and in {tempfile.gettempdir()}, or fix the "
        f"store, and run again: the training run resumes from step {step}"
    )
