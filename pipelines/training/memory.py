"""Whether a training fits the memory of its node, found out before its first step.

Without this the kernel, or the GPU, would end it minutes later and say nothing of why.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from bert_core.batch import Batch
from bert_core.model.activation_memory import Backend
from bert_core.model.catalogue import TrainableModel
from bert_core.training.step_memory import batch_memory
from pipelines.core.errors import UserError, first_line

_NO_MEMORY = "can't allocate memory"  # torch's words where the system gives none
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container, where this runs in one


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory that the ranks of a node share."""

    num_bytes: int
    of: str  # whose it is
    num_ranks: int


def room_on(device: torch.device, ranks_on_node: int) -> Room:
    """All the memory there is for a rank on `device`: a GPU is one rank's own."""
    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        return Room(num_bytes=total, of="its GPU", num_ranks=1)
    return Room(num_bytes=node_memory(_LIMIT), of="its node", num_ranks=ranks_on_node)


def node_memory(limit: Path) -> int:
    """Bytes of this node, or of this container where the file `limit` allows it fewer."""
    total = psutil.virtual_memory().total
    try:
        allowed = limit.read_text().strip()
    except FileNotFoundError:  # no control group of version 2
        return total
    return total if allowed == "max" else min(total, int(allowed))


def fitting_memory(
    model: TrainableModel,
    batches: Sequence[tuple[int, Batch]],
    room: Room,
    *,
    stage: str,
    dtype: torch.dtype,
    device: torch.device,
    optimizer_buffers: float = 2.0,
    gathered_buffers: float = 0.0,
) -> str:
    """One line on what a step of `batches` needs of `room`.

    A save needs `gathered_buffers` float32 numbers for each trained one while no step is taken.
    Raises UserError where it cannot fit, though nothing else ran on the node. What a GPU needs for
    activations was never measured: there weights, gradients and optimizer alone are held against
    the room.
    """
    backend: Backend = "cpu"
    if device.type == "cuda":
        backend = "flash" if dtype == torch.bfloat16 else "plain"
    needs = [
        batch_memory(
            model, batch, dtype=dtype, backend=backend, optimizer_buffers=optimizer_buffers
        )
        for _, batch in batches
    ]
    need = max(needs, key=lambda memory: memory.peak)
    standing = need.weights + need.gradients + need.optimizer
    if backend == "cpu":  # a GPU casts a layer's matrices where it computes
        standing += need.compute_copies
    standing += round(gathered_buffers * need.gradients)
    peak = max(need.peak, standing)
    shared = f" for each of {room.num_ranks} ranks" if room.num_ranks > 1 else ""
    is_whole = model.encoder.num_checkpointed_layers >= model.config.num_layers
    remedy = _remedy(standing, room, is_whole)
    if (peak if backend == "cpu" else standing) * room.num_ranks > room.num_bytes:
        raise UserError(
            f"a step of {stage} must fit the {_told(room.num_bytes)} of {room.of}, found that it "
            f"needs about {_told(peak)}{shared}; {remedy}"
        )
    line = f"a step needs about {_told(peak)}{shared} of the {_told(room.num_bytes)} of {room.of}"
    if peak * room.num_ranks > room.num_bytes:
        return f"{line}; should it not fit, {remedy}"
    return line


@contextmanager
def refuse_lack_of_memory(stage: str) -> Iterator[None]:
    """Turn what torch says where it gets no memory into the sentence for a person."""
    try:
        yield
    except RuntimeError as error:  # torch's own for a GPU is one
        is_lack = isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY in str(error)
        if not is_lack:
            raise
        raise UserError(
            f"the largest batch of {stage} must fit the memory of its worker, found that it does "
            f"not ({first_line(error)}); lower micro_batch_examples, or raise "
            "place.checkpointed_layers"
        ) from error


def _remedy(standing: int, room: Room, is_checkpointed: bool) -> str:
    """What to lower: a smaller micro-batch helps where weights and optimizer alone would fit."""
    fewer_ranks = " or place.training_workers" if room.num_ranks > 1 else ""
    if standing * room.num_ranks < room.num_bytes:
        recompute = "" if is_checkpointed else ", or raise place.checkpointed_layers"
        return f"lower micro_batch_examples{fewer_ranks}{recompute}"
    return f"its weights and optimizer alone take {_told(standing)}: lower size{fewer_ranks}"


def _told(num_bytes: int) -> str:
    if num_bytes < 2**30:
        return f"{num_bytes / 2**20:.0f} MiB"
    return f"{num_bytes / 2**30:.1f} GiB"
