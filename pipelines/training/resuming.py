"""What a rank trains with, saved to checkpoints, taken up from them, and led back to one."""

import logging
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist

from bert_core.model.catalogue import TrainableModel
from bert_core.training.optimization import Optimizer
from bert_core.training.ranks import num_ranks
from bert_core.training.state import Position, load_checkpoint, save_checkpoint, save_model
from pipelines.artifacts.access import store_errors
from pipelines.artifacts.attempts.claims import ClaimLostError
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.results import AVERAGED_FOLDER, MODEL_FOLDER
from pipelines.training.telemetry.curve import Telemetry
from pipelines.training.work import Work

logger = logging.getLogger(__name__)

_LAST_TRIES = 3

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Everything of one rank that a checkpoint holds, and where checkpoints are."""

    model: TrainableModel
    optimizer: Optimizer
    telemetry: Telemetry
    checkpoints: Checkpoints
    is_writer: bool


class End(NamedTuple):
    """Where a training ended."""

    position: Position
    is_last: bool  # not stopped before
    is_saved: bool  # handed over to be stored


def take_up(standing: Standing, seed: int) -> Position:
    """Put everything where the newest whole checkpoint left it; returns the position.

    The first rank chooses, all of them call this.
    """
    position = _load(standing, only_regular=False, restores_curve=True)
    return position or Position(seed=seed, step=0)


def go_back(
    standing: Standing, work: Work, position: Position,
    *, after_step: int, rate_factor: float,
) -> Position:  # fmt: skip
    """Put weights and optimizer where the last regular checkpoint left them, or at the beginning.

    The steps since then, up to `after_step`, are given up: the training goes on behind them, at
    `rate_factor` times its rates. The curve is kept. All ranks call this.
    """
    store_waiting(standing)
    saved = _load(standing, only_regular=True, restores_curve=False)
    if saved is None:
        torch.manual_seed(position.seed)
        standing.model.load_state_dict(work.build_model().state_dict())
        standing.optimizer.reset()
        if work.begin is not None:
            work.begin(standing.model)
    first = saved.step if saved else 0
    return Position(
        seed=position.seed,
        step=after_step + 1,
        rate_scale=position.rate_scale * rate_factor,
        given_up=(*position.given_up, (first, after_step)),
    )


def save(standing: Standing, position: Position, *, is_last: bool, is_regular: bool = True) -> None:
    """Write a checkpoint here, and let it be stored while the training goes on.

    Waits for the one before. All ranks call this. Raises SkippedStepsError where the guard halted
    the training, and ClaimLostError where another process has taken it over.
    """
    model, optimizer, telemetry = standing.model, standing.optimizer, standing.telemetry
    store_waiting(standing)
    # Not a folder that ends with a block: the thread that stores it removes it.
    folder = Path(tempfile.mkdtemp(prefix="bertsmith-checkpoint-")) if standing.is_writer else None
    target = (folder or Path()) / MODEL_FOLDER
    save_checkpoint(target, model, optimizer, position, is_writer=standing.is_writer)
    averages = is_last and optimizer.config.averaging_decay is not None
    with optimizer.averaged() if averages else nullcontext():
        if folder and averages:
            save_model(folder / AVERAGED_FOLDER, model)
    if folder:
        telemetry.save(folder)
        standing.checkpoints.store(
            folder, step=position.step, is_regular=is_regular,
            loss=telemetry.heldout_loss(position.step),
        )  # fmt: skip


def store_waiting(standing: Standing) -> str:
    """Wait for the checkpoint that is being stored; returns its name, empty where it is not there.

    A store that does not answer costs this checkpoint, and is said; the training goes on. Raises
    ClaimLostError where another process has taken the training over.
    """
    try:
        return standing.checkpoints.wait()
    except ClaimLostError:
        raise
    except store_errors() as error:
        logger.warning("a checkpoint could not be stored: %s", error)
        standing.telemetry.warn(f"a checkpoint could not be stored ({error})")
        return ""


def save_at_end(standing: Standing, position: Position, is_last: bool, is_saved: bool) -> str:
    """See that the position at which the training ends is stored; the name of its checkpoint.

    `is_saved` says that it was handed over. All ranks call this. Raises OSError, on all of them,
    where the store does not take it.
    """
    if not is_saved:
        save(standing, position, is_last=is_last, is_regular=is_last)
    for _ in range(_LAST_TRIES):
        if name := _told(store_waiting(standing)):
            return name
        save(standing, position, is_last=is_last, is_regular=is_last)
    if name := _told(store_waiting(standing)):
        return name
    raise OSError(f"the store must take the checkpoint of step {position.step}, found it did not")


def _load(standing: Standing, *, only_regular: bool, restores_curve: bool) -> Position | None:
    if not standing.is_writer:
        return _load_named(standing, _told(None), restores_curve=restores_curve)
    with standing.checkpoints.newest(only_regular=only_regular) as opened:
        files = _told(opened.files if opened else None)
        position = _load_named(standing, files, restores_curve=restores_curve)
    while standing.checkpoints.damage:
        sentence = standing.checkpoints.damage.pop(0)
        standing.telemetry.warn(f"{sentence}: going on from the one before")
    return position


def _load_named(
    standing: Standing, files: "ray.train.Checkpoint | None", *, restores_curve: bool
) -> Position | None:
    if files is None:
        return None
    with files.as_directory() as folder:
        position = load_checkpoint(Path(folder) / MODEL_FOLDER, standing.model, standing.optimizer)
        if restores_curve:
            standing.telemetry.restore(Path(folder), position.step)
    return position


def _told(value: Value) -> Value:
    """What the first rank says; all ranks call it."""
    if num_ranks() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, 0, device=ray.train.torch.get_device())
    return box[0]
