"""Where a training run computes: its device and precision, how many workers, and with which CPUs.

All of it is decided before the run starts. Device and precision decide its bits, so that they name
its artifact. Workers that do not fit are refused: Ray would wait for ever, and training silently
without GPUs would be worse.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bert_core.backends.context import Precision, compute_dtype
from bert_core.config import SIZES
from pipelines.cluster import connect, nodes
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.train.settings import BatchSplit, least_workers

logger = logging.getLogger(__name__)

Node = Mapping[str, float]  # its resources, as Ray counts them: {"CPU": 64.0, "GPU": 8.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What the workers compute on and in."""

    device: Literal["cpu", "cuda"]
    precision: Literal["bf16", "float32"]
    torch: str  # its version

    def named_in(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as they name an artifact: with what they were resolved to."""
        resolved = {"device": self.device, "precision": self.precision, "torch": self.torch}
        return {**settings, **resolved}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What Ray is asked for."""

    num_workers: int | tuple[int, int]
    cpus: int  # of each worker, which computes in as many threads
    use_gpu: bool  # one for each worker


def resolve_device(precision: Precision, context: StageContext) -> tuple[Arithmetic, StageContext]:
    """What a training run computes in, and the context whose ranks get that device and no other.

    Without RAY_ADDRESS this machine has the GPUs, else the nodes of the cluster; an automatic
    precision is that of this machine's processor, and bf16 on the GPUs of other machines. Raises
    UserError if GPUs are wanted and there is none, nor an autoscaler to wait for.
    """
    runtime = context.runtime
    if os.environ.get("RAY_ADDRESS"):
        connect()
        use_gpu = uses_gpu(runtime, nodes())
        has_gpu = uses_gpu(runtime.model_copy(update={"device": "auto"}), nodes())
        may_come = runtime.wait_for_nodes_seconds > 0
    else:
        has_gpu, may_come = torch.cuda.is_available(), False
        use_gpu = runtime.device == "gpu" or (runtime.device == "auto" and has_gpu)
    if use_gpu and not (has_gpu or may_come):
        raise UserError(
            "runtime.device=gpu needs a GPU, and there is none; set runtime.device=auto, add a "
            "node with GPUs, or raise runtime.wait_for_nodes_seconds where an autoscaler adds nodes"
        )
    if use_gpu and not torch.cuda.is_available():
        is_bf16 = precision != "float32"
    else:
        device = "cuda" if use_gpu else "cpu"
        is_bf16 = compute_dtype(precision, device) == torch.bfloat16
        if is_bf16 and compute_dtype("auto", device) == torch.float32:
            logger.warning(
                "precision=bf16: the %s of this machine has no instructions for bf16 and takes "
                "many times as long as in float32; leave precision out",
                "GPU" if use_gpu else "processor",
            )
    arithmetic = Arithmetic(
        device="cuda" if use_gpu else "cpu",
        precision="bf16" if is_bf16 else "float32",
        torch=torch.__version__,
    )
    # Ray may count other GPUs than torch sees: an artifact is not named after one device and
    # trained on another.
    device = "gpu" if use_gpu else "cpu"
    return arithmetic, replace(context, runtime=runtime.model_copy(update={"device": device}))


def is_single_threaded(num_layers: int, hidden_size: int) -> bool:
    """Whether CPUs train an encoder of this size fastest with a rank of one thread on each core.

    So it is with layers of no more weights than BERT-small's (docs/decisions/0012).
    """
    small_layers, small_size, _ = SIZES["small"]
    return num_layers * hidden_size**2 <= small_layers * small_size**2


def place_workers(
    runtime: RuntimeSettings, nodes: Sequence[Node], split: BatchSplit, *, one_thread_each: bool
) -> Placement:
    """Fit the workers that `runtime` asks for to the `nodes` of a cluster.

    Where the number of workers is "auto": one a GPU; without GPUs one a core of the largest node
    if `one_thread_each` is what the model trains fastest with, else as many as nodes. Neither that
    nor the end of a range is more than a step has micro-batches. CPUs are shared out, to every
    worker as many. Raises UserError where the workers do not fit, unless nodes are waited for: then
    it is the least number of workers, with as few CPUs as are asked for.
    """
    use_gpu = uses_gpu(runtime, nodes)
    cpus, count = runtime.cpus_per_worker or 1, runtime.training_workers
    if count == "auto" and one_thread_each and not use_gpu:
        # On one node: between nodes the exchange would take longer than the step.
        nodes = sorted(nodes, key=lambda node: node.get("CPU", 0))[-1:]
    room = room_on_nodes(nodes, cpus, use_gpu=use_gpu)
    least = least_workers(runtime)
    if isinstance(count, tuple):
        most = min(count[1], split.num_micro_batches)
    elif count != "auto":
        most = count
    else:
        is_by_room = use_gpu or one_thread_each
        natural = room if is_by_room else sum(node.get("CPU", 0) >= cpus for node in nodes)
        most = max(1, min(natural, split.num_micro_batches))
    if room < least and runtime.wait_for_nodes_seconds and os.environ.get("RAY_ADDRESS"):
        # An autoscaler brings nodes for what Ray Train asks for; a range has nothing to follow yet.
        return Placement(num_workers=least, cpus=cpus, use_gpu=use_gpu)
    if room < least:
        needs = f"{cpus} CPU and 1 GPU" if use_gpu else f"{cpus} CPU"
        raise UserError(
            f"{least} training workers with {needs} each do not fit the "
            f"cluster, which has room for {room} on {listed(nodes)}; lower "
            "runtime.training_workers or runtime.cpus_per_worker, add nodes, raise "
            "runtime.wait_for_nodes_seconds where an autoscaler adds them, or set "
            "runtime.device=cpu to train on CPUs"
        )
    return Placement(
        num_workers=(least, most) if isinstance(count, tuple) else most,
        cpus=runtime.cpus_per_worker or _share(nodes, min(most, room), use_gpu=use_gpu),
        use_gpu=use_gpu,
    )


def uses_gpu(runtime: RuntimeSettings, nodes: Sequence[Node]) -> bool:
    """Whether the workers get GPUs: as set or, with `auto`, if there is any."""
    if runtime.device == "auto":
        return any(node.get("GPU", 0) >= 1 for node in nodes)
    return runtime.device == "gpu"


def room_on_nodes(nodes: Sequence[Node], cpus: int, *, use_gpu: bool) -> int:
    """How many workers with `cpus` CPUs each, and a GPU if `use_gpu`, fit the nodes."""
    return sum(
        min(int(node.get("CPU", 0) // cpus), int(node.get("GPU", 0)) if use_gpu else 1 << 30)
        for node in nodes
    )


def _share(nodes: Sequence[Node], num_workers: int, *, use_gpu: bool) -> int:
    """The most CPUs that each of `num_workers` can have."""
    largest = max(int(node.get("CPU", 0)) for node in nodes)
    return next(
        cpus
        for cpus in range(largest, 0, -1)
        if room_on_nodes(nodes, cpus, use_gpu=use_gpu) >= num_workers
    )


def listed(nodes: Sequence[Node]) -> str:
    """The nodes and their resources, for messages."""
    return "; ".join(f"{n.get('CPU', 0):g} CPU and {n.get('GPU', 0):g} GPU" for n in nodes)
