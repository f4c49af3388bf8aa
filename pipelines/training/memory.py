"""Whether a training run fits the memory of its workers, found out by computing its largest batch.

On a CPU the kernel ends a process that takes too much, and says nothing of why. So a worker may
take no more than its share of the node while it tries: then torch says that there is no memory.
"""

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import torch

from bert_core.backends.precision import Precision
from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import rehearse
from bert_core.training.optimization import Optimizer
from pipelines.config.errors import UserError, first_line
from pipelines.config.versions import peak_resident_bytes

# What is said where the system gives no memory: by torch, by C++, by oneDNN.
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "could not create a memory", "out of memory")
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of the container, where this runs in one
_SHARE = 0.95  # of a node's memory; where more of it is used, Ray ends workers


def node_memory(limit: Path = _LIMIT) -> int:
    """Bytes of this node, or of this container where the file `limit` allows it fewer."""
    total = psutil.virtual_memory().total
    try:
        allowed = limit.read_text().strip()
    except FileNotFoundError:  # no control group of version 2
        return total
    return total if allowed == "max" else min(total, int(allowed))


def rehearsed(
    stage: str,
    model: TrainableModel,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    precision: Precision,
    ranks_on_node: int,
) -> str:
    """A line on `batches`, each computed forward and backward; nothing of it stays.

    All ranks call it: those of a node share its memory. Raises UserError where they do not fit.
    """
    started = time.perf_counter()
    device = optimizer.arena.values.device
    fewer = " or runtime.training_workers" if ranks_on_node > 1 else ""
    remedy = f"lower micro_batch_size{fewer}, or raise runtime.checkpointed_layers"
    with within_memory(f"the largest batch of {stage}", remedy, device, ranks_on_node):
        for batch in batches:
            rehearse(model, optimizer, batch, precision=precision)
    seconds = time.perf_counter() - started
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_reserved(device) if on_gpu else peak_resident_bytes()
    return (
        f"{stage}: the largest batch fits, rehearsed in {seconds:.1f} s with at most "
        f"{peak / 2**20:,.0f} MiB of {'the GPU' if on_gpu else 'memory'} on a worker"
    )


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
    """Have the system refuse what would make this process larger than that."""
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
