"""What the ranks of a training run check before its first step: that they agree, and that it fits.

Each failure is a UserError that ends the training run on all ranks, where it would otherwise have
failed after minutes or hours.

Whether it fits the memory of its workers is tried by computing its largest batch. On a CPU the
kernel kills a process that takes too much, without a reason. So the worker's memory is limited to
its share of the node meanwhile: then torch reports that there is none left.
"""

import hashlib
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store  # no public name for it

from bert_core.model.catalogue import TrainableModel
from bert_core.training.optimization import state_size
from bert_core.training.optimizer_settings import OptimizationConfig
from pipelines.artifacts.access import nearest_existing
from pipelines.config.errors import UserError, first_line
from pipelines.config.versions import computing_versions
from pipelines.training.ranks import all_gather

_MEETING_SECONDS = 300.0  # ranks come when they have read their inputs, some later than others
# In errors of torch, C++ and oneDNN when there is no memory left.
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a memory", "out of memory")
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container, where this runs in one
_SHARE = 0.95  # of a node's memory; where more of it is used, Ray ends workers


def check_ranks_agree(
    stage: str, device: torch.device, node: str, settings: str, *, seconds: float = _MEETING_SECONDS
) -> None:
    """Check that all ranks can exchange numbers and run the same.

    `settings` is what the training run was given, `node` where this rank is. Raises UserError,
    within `seconds` and on every rank that came, where one does not come, where what they exchange
    is not what was sent, and where settings, sources or versions differ; RuntimeError where a rank
    that came ends meanwhile.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    _meet(stage, device, node, seconds)
    digest = hashlib.sha256(settings.encode()).hexdigest()[:8]
    facts = {"node": node, **computing_versions(), "settings": digest}
    _check_alike(stage, [json.loads(each) for each in all_gather(json.dumps(facts), device)])


def _meet(stage: str, device: torch.device, node: str, seconds: float) -> None:
    """Add up numbers that every rank knows beforehand."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("preflight", _get_default_store())
    store.set(str(rank), node)
    numbers = torch.zeros(num_ranks, dtype=torch.float64, device=device)
    numbers[rank] = rank + 1
    started = time.monotonic()
    try:
        work = dist.all_reduce(numbers, async_op=True)
        assert work is not None, "this rank is in the group"
        work.wait(timedelta(seconds=seconds))
        found = numbers.tolist()
    except RuntimeError as error:
        if time.monotonic() - started < seconds:
            raise  # a rank that came has died: it is replaced, and all of them meet again
        raise UserError(_absence(stage, store, num_ranks, seconds, error)) from error
    expected = [float(number) for number in range(1, num_ranks + 1)]
    if found != expected:
        raise UserError(
            f"the {num_ranks} workers of {stage} added up {expected} and got {found} on rank "
            f"{rank} ({node}); look at the network between the nodes"
        )


def _absence(stage: str, store: Any, num_ranks: int, seconds: float, error: Exception) -> str:
    here = {
        rank: store.get(str(rank)).decode() for rank in range(num_ranks) if store.check([str(rank)])
    }
    missing = [f"rank {rank}" for rank in range(num_ranks) if rank not in here]
    came = ", ".join(f"rank {rank} on {node}" for rank, node in here.items())
    what = (
        f"{' and '.join(missing)} did not come"
        if missing
        else f"all came, but not their numbers ({first_line(error)})"
    )
    return (
        f"the {num_ranks} workers of {stage} do not reach each other within {seconds:.0f} s: "
        f"{what} (here: {came}); look at the nodes of the others and at the network between them"
    )


def _check_alike(stage: str, facts: Sequence[dict[str, str]]) -> None:
    first = facts[0]
    for rank, other in enumerate(facts):
        different = [key for key in first if key != "node" and other[key] != first[key]]
        if different:
            theirs = ", ".join(f"{key} {other[key]}" for key in different)
            ours = ", ".join(f"{key} {first[key]}" for key in different)
            raise UserError(
                f"the workers of {stage} differ: {theirs} on rank {rank} ({other['node']}) and "
                f"{ours} on rank 0 ({first['node']}); install the same on both nodes and run again"
            )


def checkpoint_bytes(
    model: TrainableModel, config: OptimizationConfig, *, with_best: bool
) -> tuple[int, int]:
    """Of a checkpoint, and of the model in it: both hold little beside float32 numbers.

    `with_best` says that the best weights so far are in each checkpoint, as a second model.
    """
    model_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    return (1 + with_best) * model_bytes + 4 * state_size(model, config), model_bytes


def check_disk_space(
    stage: str, checkpoint_bytes: int, model_bytes: int, folder: str | None
) -> None:
    """Check for room for the two checkpoints that are kept, two more, and the artifact.

    The two more are one that a stop left, and the one being stored before others are removed.
    `folder` is theirs on this node's disks; None for a remote store. Each checkpoint is first
    written into the temporary folder. Raises UserError if a disk lacks room.
    """
    wanted: dict[int, int] = {}  # bytes by device
    places: dict[int, Path] = {}

    def want(path: Path, num_bytes: int) -> None:
        device = path.stat().st_dev
        wanted[device] = wanted.get(device, 0) + num_bytes
        places[device] = path

    want(Path(tempfile.gettempdir()), checkpoint_bytes + model_bytes)
    if folder is not None:
        want(nearest_existing(Path(folder)), 4 * checkpoint_bytes + 2 * model_bytes)
    for device, num_bytes in wanted.items():
        free = shutil.disk_usage(places[device]).free
        if free < num_bytes:
            raise UserError(
                f"the disk of {places[device]} is too full for the checkpoints of {stage} and its "
                f"model: {_readable(num_bytes)} are needed, {_readable(free)} are free; free some, "
                "choose another runtime.store or TMPDIR, or lower size"
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
def within_memory(
    what: str, remedy: str, device: torch.device, ranks_on_node: int
) -> Iterator[None]:
    """Let the block take no more than a GPU has or, on a CPU, than a rank's share of the node.

    Raises UserError, which names `what` and the `remedy`, where that is too little.
    """
    share = round(_SHARE * node_memory() / ranks_on_node)
    try:
        with nullcontext() if device.type == "cuda" else _limited(share):
            yield
    except (RuntimeError, MemoryError) as error:  # torch's own for a GPU is a RuntimeError
        is_lack = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not (is_lack or any(words in str(error) for words in _NO_MEMORY)):
            raise
        raise UserError(
            f"{what} does not fit the memory of its worker ({first_line(error)}); {remedy}"
        ) from error


@contextmanager
def _limited(num_bytes: int) -> Iterator[None]:
    """Have the system refuse allocations beyond a size of the process of `num_bytes`."""
    memory = psutil.Process().memory_info()
    if not hasattr(memory, "data"):  # Linux alone counts, and limits, what a process allocates
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = memory.data + max(0, num_bytes - (memory.rss - memory.shared))
    for limit in (soft, hard):
        most = most if limit == resource.RLIM_INFINITY else min(most, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _readable(num_bytes: int) -> str:
    gigabytes, megabytes = num_bytes / 2**30, num_bytes / 2**20
    return f"{gigabytes:.1f} GiB" if gigabytes >= 1 else f"{megabytes:.0f} MiB"
