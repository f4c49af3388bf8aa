"""Which stored checkpoint a training takes up: the newest that is whole on all its nodes."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from bert_core.training.ranks import this_rank
from pipelines.core.errors import UserError
from pipelines.training.agreement import all_told, ranks_where, told
from pipelines.training.checkpoints import Checkpoint, Checkpoints, Opened
from pipelines.training.checksums import DamagedCheckpointError

logger = logging.getLogger(__name__)


@contextmanager
def newest_whole(
    checkpoints: Checkpoints,
    device: torch.device,
    *,
    node: str,
    is_writer: bool,
    only_regular: bool = False,
) -> Iterator[Opened | None]:
    """The newest one that is whole on every node, in a folder that this rank can read.

    The first rank of each node reads for all ranks with the same `node`. Of one that no node finds
    whole the one before is taken; where there is none, None is yielded and what is damaged is set
    aside. The writer's list counts, and what was found damaged is in its `damage`. The folder
    stays until all ranks have left the block; all call this. Raises UserError, on all ranks, where
    some nodes find a checkpoint whole and others do not: these would make a sound one seem lost.
    """
    found = told(checkpoints.stored() if is_writer else [], device)
    nodes = all_told(node, device)
    is_reader = nodes.index(node) == this_rank()
    for checkpoint in found:
        if only_regular and not checkpoint.is_regular:
            continue
        with ExitStack() as stack:
            folder = trouble = ""
            if is_reader:
                try:
                    folder = str(stack.enter_context(checkpoints.opened(checkpoint)))
                except DamagedCheckpointError as error:
                    trouble = str(error)
            said = map(json.loads, all_told(json.dumps([folder, trouble]), device))
            read: dict[str, list[str]] = {}  # of each node what its first rank says
            for where, words in zip(nodes, said, strict=True):
                read.setdefault(where, words)
            troubles = {where: trouble for where, (_, trouble) in read.items() if trouble}
            if not troubles:
                yield Opened(checkpoint, Path(read[node][0]))
                ranks_where(False, device)  # a rank that still reads keeps the folders of all
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
        f"every node must read the checkpoint of step {checkpoint.step} as it was stored, found "
        f"that {found}, while it is whole on the others; look at the disk and the memory of that "
        "node, or take it out of the cluster, and run again: the training goes on from this "
        "checkpoint"
    )
