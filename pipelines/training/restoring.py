"""A rank put back where a checkpoint left it: the newest that is whole on all nodes."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from bert_core.training.ranks import this_rank
from bert_core.training.state import Position, load_checkpoint
from pipelines.config.errors import UserError
from pipelines.training.checkpoint_files import (
    MODEL_FOLDER,
    Checkpoint,
    DamagedCheckpointError,
)
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.ranks import all_gather, broadcast, wait_for_all
from pipelines.training.saving import TrainState

logger = logging.getLogger(__name__)


def restore(state: TrainState, seed: int) -> Position:
    """Put everything where the newest whole checkpoint left it; returns the position.

    The first rank chooses, all of them call this.
    """
    return _load(state) or Position(seed=seed, step=0)


def _load(state: TrainState) -> Position | None:
    checkpoints, telemetry = state.checkpoints, state.telemetry
    position = None
    with newest_whole(
        checkpoints, state.device, node=state.node, is_writer=state.is_writer
    ) as folder:
        if folder is not None:
            position = load_checkpoint(folder / MODEL_FOLDER, state.model, state.optimizer)
            telemetry.restore(folder, position.step)
            if state.best is not None:
                state.best.restore(folder)
    then = "using the previous one"
    if position is None:
        then = f"starting over: no other is whole; all of them are kept in {checkpoints.aside()}"
    while checkpoints.damage:
        telemetry.warn(f"{checkpoints.damage.pop(0)}: {then}")
    return position


@contextmanager
def newest_whole(
    checkpoints: Checkpoints,
    device: torch.device,
    *,
    node: str,
    is_writer: bool,
) -> Iterator[Path | None]:
    """A readable folder with the newest checkpoint that is whole on every node.

    The first rank of each node reads for all ranks with the same `node`. If no node finds a
    checkpoint whole, the previous one is taken; if there is none, None is yielded and the damaged
    ones are set aside. The writer's list counts, and its `damage` names what was damaged. The
    folder stays until all ranks have left the block; all call this. Raises UserError, on all
    ranks, if only some nodes find a checkpoint damaged: their disk or memory is at fault.
    """
    found = broadcast(checkpoints.stored() if is_writer else [], device)
    nodes = all_gather(node, device)
    is_reader = nodes.index(node) == this_rank()
    for checkpoint in found:
        with ExitStack() as stack:
            folder = trouble = ""
            if is_reader:
                try:
                    folder = str(stack.enter_context(checkpoints.opened(checkpoint)))
                except DamagedCheckpointError as error:
                    trouble = str(error)
            said = map(json.loads, all_gather(json.dumps([folder, trouble]), device))
            read: dict[str, list[str]] = {}  # of each node what its first rank says
            for where, words in zip(nodes, said, strict=True):
                read.setdefault(where, words)
            troubles = {where: trouble for where, (_, trouble) in read.items() if trouble}
            if not troubles:
                yield Path(read[node][0])
                wait_for_all(device)  # a rank that still reads keeps the folders of all
                return
            if len(troubles) < len(read):
                raise UserError(_disagreement(checkpoint, troubles))
            logger.warning("the checkpoint of step %s is damaged: %s", checkpoint.step, troubles)
            checkpoints.give_up(checkpoint, troubles[nodes[0]])
    if is_writer:
        checkpoints.set_aside()
    yield None


def _disagreement(checkpoint: Checkpoint, troubles: Mapping[str, str]) -> str:
    found = " and ".join(f"{trouble} on {node}" for node, trouble in troubles.items())
    return (
        f"the checkpoint of step {checkpoint.step} is damaged on some nodes only: "
        f"{found}; it is whole on the others; look at the disk and the memory of that "
        "node, or take it out of the cluster, and run again: training resumes from this "
        "checkpoint"
    )
