"""What the ranks of a training run check before its first step: that they meet, and that it fits.

Each failure is a UserError that ends the training run on all ranks, where it would otherwise have
failed after minutes or hours.
"""

import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from bert_core.model.catalogue import TrainableModel
from bert_core.training.optimization import state_size
from bert_core.training.optimizer import OptimizationConfig
from pipelines.errors import UserError, first_line
from pipelines.store.access import nearest_existing

_MEETING_SECONDS = 300.0  # ranks come when they have started, some later than others
# In errors of torch, C++ and oneDNN when there is no memory left.
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a memory", "out of memory")
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container, where this runs in one
_SHARE = 0.95  # of a node's memory; where more of it is used, Ray ends workers


def meet(stage: str, device: torch.device, *, seconds: float = _MEETING_SECONDS) -> None:
    """Add up a number over all ranks, which shows that they reach each other.

    Raises UserError, within `seconds` and on every rank that came, where one does not come;
    RuntimeError where a rank that came ends meanwhile: it is replaced, and all meet again.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    started = time.monotonic()
    try:
        work = dist.all_reduce(torch.ones(1, device=device), async_op=True)
        assert work is not None, "this rank is in the group"
        work.wait(timedelta(seconds=seconds))
    except RuntimeError as error:
        if time.monotonic() - started < seconds:
            raise
        raise UserError(
            f"the {dist.get_world_size()} workers of {stage} do not reach each other within "
            f"{seconds:.0f} s ({first_line(error)}); look at the nodes and at the network between "
            "them"
        ) from error


def check_disk_space(
    stage: str,
    model: TrainableModel,
    config: OptimizationConfig,
    folder: str | None,
    best: object | None,
) -> None:
    """Check for room for the two checkpoints that are kept, two more, and the artifact.

    The two more are one that a stop left, and the one being stored before others are removed.
    `folder` is theirs on this node's disks; None for a remote store. With `best` weights there is a
    second model in each. Each is first written into the temporary folder. Raises UserError if a
    disk lacks room.
    """
    model_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    models = 2 if best is not None else 1
    checkpoint_bytes = models * model_bytes + 4 * state_size(model, config)
    needs = [(Path(tempfile.gettempdir()), checkpoint_bytes + model_bytes)]
    if folder is not None:
        needs.append((nearest_existing(Path(folder)), 4 * checkpoint_bytes + 2 * model_bytes))
    by_device: dict[int, int] = {}
    for path, num_bytes in needs:
        device = path.stat().st_dev
        by_device[device] = by_device.get(device, 0) + num_bytes
        free = shutil.disk_usage(path).free
        if free < by_device[device]:
            raise UserError(
                f"the disk of {path} is too full for the checkpoints of {stage} and its model: "
                f"{_readable(by_device[device])} are needed, {_readable(free)} are free; free "
                "some, choose another runtime.store or TMPDIR, or lower size"
            )


def node_memory(limit: Path = _LIMIT) -> int:
    """Bytes of this node, or of this container where the file `limit` allows it fewer."""
    total = psutil.virtual_memory().total
    try:
        allowed = limit.read_text().strip()
    except FileNotFoundError:  # no control group of version 2
        return total
    return total if allowed == "max" else min(total, int(allowed))


@contextmanager
def within_memory(stage: str, device: torch.device, ranks_on_node: int) -> Iterator[None]:
    """Explain a lack of memory in the block in a sentence, and have the system refuse it in time.

    On a CPU the kernel would kill a process that takes too much, without a reason: so the worker is
    allowed its share of the node. Raises UserError with the remedy.
    """
    if device.type != "cuda":
        _limit_to(round(_SHARE * node_memory() / ranks_on_node))
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's own for a GPU is a RuntimeError
        is_lack = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not (is_lack or any(words in str(error) for words in _NO_MEMORY)):
            raise
        fewer = " or runtime.training_workers" if ranks_on_node > 1 else ""
        raise UserError(
            f"{stage} does not fit the memory of its worker ({first_line(error)}); lower "
            f"micro_batch_size, size{fewer}, or raise runtime.checkpointed_layers"
        ) from error


def _limit_to(num_bytes: int) -> None:
    """Have the system refuse allocations beyond a size of the process of `num_bytes`."""
    memory = psutil.Process().memory_info()
    if not hasattr(memory, "data"):  # Linux alone counts, and limits, what a process allocates
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = memory.data + max(0, num_bytes - (memory.rss - memory.shared))
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _readable(num_bytes: int) -> str:
    gigabytes, megabytes = num_bytes / 2**30, num_bytes / 2**20
    return f"{gigabytes:.1f} GiB" if gigabytes >= 1 else f"{megabytes:.0f} MiB"
