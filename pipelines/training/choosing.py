"""Which stored checkpoint the ranks of a training take up: the newest that is whole on all."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from pipelines.training.agreement import ranks_where, told
from pipelines.training.checkpoints import Checkpoints, DamagedCheckpointError, Opened

logger = logging.getLogger(__name__)


@contextmanager
def newest_whole(
    checkpoints: Checkpoints, device: torch.device, *, is_writer: bool, only_regular: bool = False
) -> Iterator[Opened | None]:
    """The newest one that is whole on every rank, in a folder that this rank can read.

    None where there is none. The writer's list counts, and what it found damaged, or another rank
    did, is in its `damage`. The folder stays until all ranks have left the block; all call this.
    """
    found = told(checkpoints.stored() if is_writer else [], device)
    for checkpoint in found:
        if only_regular and not checkpoint.is_regular:
            continue
        with ExitStack() as stack:
            trouble = ""
            try:
                folder = stack.enter_context(checkpoints.opened(checkpoint))
            except DamagedCheckpointError as error:
                trouble = str(error)
                logger.warning("the checkpoint of step %s is damaged: %s", checkpoint.step, error)
            damaged_on = ranks_where(bool(trouble), device)
            if not damaged_on:
                yield Opened(checkpoint, folder)
                ranks_where(False, device)  # a rank that still reads keeps the folders of all
                return
            checkpoints.give_up(checkpoint, trouble or f"as rank {damaged_on[0]} read it")
    yield None
