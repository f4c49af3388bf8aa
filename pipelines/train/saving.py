"""The state of a rank: saved to checkpoints while training continues, and put back from them."""

import errno
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bert_core.model.catalogue import TrainableModel
from bert_core.model.rows import CODE_FILE
from bert_core.tokenizer_files import SAVED_FILES
from bert_core.training.exchange import this_rank
from bert_core.training.optimizer import Optimizer
from bert_core.training.state import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    Position,
    load_checkpoint,
    save_checkpoint,
    save_model,
)
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError, first_line
from pipelines.store import Draft
from pipelines.store.access import FULL, scratch_folder, store_errors
from pipelines.train.checkpoints import Checkpoints, DamagedCheckpointError
from pipelines.train.metrics import BEST_FOLDER, Best, Telemetry
from pipelines.train.ranks import all_gather, broadcast, wait_for_all

# Inside a checkpoint.
MODEL_FOLDER = "model"  # to resume from
AVERAGED_FOLDER = "averaged"  # the model to publish, where an average of the weights is kept
HISTORY_FILE = "history.json"

# What `publish_model` puts into an artifact.
MODEL_FILES = (WEIGHTS_FILE, CONFIG_FILE, *SAVED_FILES, HISTORY_FILE)

# How long a due checkpoint waits for the previous one, while the other ranks wait for rank 0.
PATIENCE_SECONDS = 60.0
_LAST_TRIES = 3
_POLL_SECONDS = 10.0
# Errors of a disk that would come again: a replaced worker would only repeat the same steps.
_REFUSALS = frozenset((*FULL, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM))


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
        return cls(first_line(error), isinstance(error, OSError) and error.errno in _REFUSALS)


def save(state: TrainState, position: Position, *, is_last: bool = False) -> bool:
    """Write a checkpoint, and let it be stored meanwhile; returns whether it was written.

    If the previous one is not stored within a minute this one is left out, on all ranks; the last
    one waits. One that the temporary folder cannot take is left out as well, and `save_at_end`
    tries the last one again. All ranks call this.
    """
    seconds = 0.0 if is_last else PATIENCE_SECONDS
    is_storing = state.is_writer and state.checkpoints.is_storing(seconds)
    if not is_last and broadcast(is_storing, state.device):
        state.telemetry.warn(
            f"the checkpoint of step {position.step} is left out: the previous one is still being "
            "copied to the store"
        )
        return False
    return _write(state, position, is_last=is_last) is None


def _write(state: TrainState, position: Position, *, is_last: bool) -> Fault | None:
    """Write a checkpoint here and hand it over to be stored, once the one before is.

    All ranks call this. Returns why, on all of them, where the writer's disk does not take it.
    """
    model, optimizer, telemetry = state.model, state.optimizer, state.telemetry
    _wait_until_stored(state)
    faults: list[Fault] = []
    folder: Path | None = None
    try:
        with _collected(faults):
            # Not a folder that ends with a block: the thread that stores it removes it.
            folder = scratch_folder() if state.is_writer else None
        # A writer without a folder continues too: the others wait for its share.
        with _collected(faults):
            target = (folder or Path()) / MODEL_FOLDER
            save_checkpoint(target, model, optimizer, position, is_writer=folder is not None)
        averages = is_last and optimizer.config.averaging_decay is not None
        with optimizer.averaged() if averages else nullcontext(), _collected(faults):
            if folder and averages and not faults:
                save_model(folder / AVERAGED_FOLDER, model)
        with _collected(faults):
            if folder and not faults:
                if state.best is not None:
                    state.best.save(folder, model)
                telemetry.save(folder)
        fault = broadcast(faults[0] if faults else None, state.device)
    except BaseException:
        if folder:
            shutil.rmtree(folder)
        raise
    if fault:
        if folder:
            shutil.rmtree(folder)
        telemetry.warn(
            f"the checkpoint of step {position.step} is left out: the temporary folder "
            f"{tempfile.gettempdir()} cannot take it ({fault.reason})"
        )
        return fault
    if folder:
        state.checkpoints.store(folder, position.step)
    return None


@contextmanager
def _collected(faults: list[Fault]) -> Iterator[None]:
    """Collect errors of the disk in the block, and continue after it."""
    try:
        yield
    except OSError as error:
        faults.append(Fault.of(error))


def _wait_until_stored(state: TrainState) -> str | Fault:
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
        state.telemetry.warn(f"a checkpoint could not be stored ({stored.reason})")
    return broadcast(stored, state.device)


def save_at_end(state: TrainState, position: Position, *, is_last: bool, is_saved: bool) -> str:
    """Store the position at which the training run ends; returns the name of its checkpoint.

    `is_saved` says that it is being stored already. All ranks call this. Raises, on all of them,
    UserError if a full or read-only disk refuses it, and OSError if the store does not answer for
    as long as its client tries.
    """
    stored: str | Fault = _wait_until_stored(state) if is_saved else ""
    for _ in range(_LAST_TRIES):
        if stored and not isinstance(stored, Fault):
            return stored
        if isinstance(stored, Fault) and stored.is_refusal:
            break
        stored = _write(state, position, is_last=is_last) or _wait_until_stored(state)
    if stored and not isinstance(stored, Fault):
        return stored
    fault = stored if isinstance(stored, Fault) else Fault("it was not handed over", False)
    sentence = ""
    if state.is_writer:
        step = max((each.step for each in state.checkpoints.stored()), default=0)
        sentence = (
            f"the checkpoint of step {position.step} could not be stored in "
            f"{state.checkpoints.folder}: {fault.reason}; free some space there and in "
            f"{tempfile.gettempdir()}, or fix the store, and run again: the training run resumes "
            f"from step {step}"
        )
    sentence = broadcast(sentence, state.device)
    raise UserError(sentence) if fault.is_refusal else OSError(sentence)


def restore(state: TrainState, seed: int) -> Position:
    """Put everything where the newest checkpoint left it that is whole; returns the position.

    A damaged one is passed over with a warning. The writer's list counts. The first rank of each
    node reads for all ranks of the node; all ranks call this.
    """
    nodes = all_gather(state.node, state.device)
    first_of_node = nodes.index(state.node)
    stored = broadcast(state.checkpoints.stored() if state.is_writer else [], state.device)
    for checkpoint in stored:
        with ExitStack() as stack:
            folder = damage = ""
            if this_rank() == first_of_node:
                try:
                    folder = str(stack.enter_context(state.checkpoints.opened(checkpoint)))
                except DamagedCheckpointError as error:
                    damage = str(error)
            answers = [
                json.loads(each) for each in all_gather(json.dumps([folder, damage]), state.device)
            ]
            damages = [each for _, each in answers if each]
            if damages:
                state.telemetry.warn(
                    f"the checkpoint of step {checkpoint.step} is damaged ({damages[0]}): an "
                    "earlier one is used, or training starts over"
                )
                continue
            read = Path(answers[first_of_node][0])
            position = load_checkpoint(read / MODEL_FOLDER, state.model, state.optimizer)
            state.telemetry.restore(read, position.step)
            if state.best is not None:
                state.best.restore(read)
            wait_for_all(state.device)  # a rank that still reads keeps the folders of all
            return position
    return Position(seed=seed, step=0)


def publish_model(
    draft: Draft, checkpoint: Path, tokenizer: WordPieceTokenizer, result: Mapping[str, Any]
) -> None:
    """Put the model, its tokenizer and its training curve into the artifact.

    The model is the best one, or the average of the weights, where the last checkpoint holds one.
    """
    choices = (BEST_FOLDER, AVERAGED_FOLDER, MODEL_FOLDER)
    folder = next(checkpoint / name for name in choices if (checkpoint / name).is_dir())
    for name in (WEIGHTS_FILE, CONFIG_FILE, CODE_FILE):
        if (folder / name).is_file():
            with draft.file(name) as target:
                shutil.copyfile(folder / name, target.path)
    for name, text in tokenizer.files().items():
        draft.write(name, text.encode())
    draft.write(HISTORY_FILE, json.dumps(result["history"]).encode())
