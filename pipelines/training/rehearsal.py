"""The largest batch of a training, computed once before its first step: it fits, or is refused."""

import time
from collections.abc import Sequence

import torch

from bert_core.backends.precision import Precision
from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import rehearse
from bert_core.training.optimization import Optimizer
from pipelines.core.cluster.machine import peak_resident_bytes
from pipelines.training.memory import refuse_lack_of_memory


def rehearsed(
    stage: str,
    model: TrainableModel,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    device: torch.device,
    precision: Precision,
) -> str:
    """A line on `batches`, each computed forward and backward; nothing of it stays.

    All ranks call it: those of a node share its memory. Raises UserError where torch gets none.
    """
    started = time.perf_counter()
    with refuse_lack_of_memory(stage):
        for batch in batches:
            rehearse(model, optimizer, batch, precision=precision)
    seconds = time.perf_counter() - started
    on_gpu = device.type == "cuda"
    peak = torch.cuda.max_memory_reserved(device) if on_gpu else peak_resident_bytes()
    return (
        f"{stage}: the largest batch fits, rehearsed in {seconds:.1f} s with at most "
        f"{peak / 2**20:,.0f} MiB of {'the GPU' if on_gpu else 'memory'} on a worker"
    )
