"""Where a training run computes: its device and precision, how many workers, and with which CPUs.

All of it is decided before the run starts. Device and precision decide its bits, so that they name
its artifact. Workers that do not fit are refused: Ray would wait for ever, and training silently
without GPUs would be worse.

Nodes that an autoscaler has to add are requested with a placement group: those of several training
runs wait side by side, and each ends with the process that made it. Ray's `request_resources` holds
one request for the whole cluster, which outlives a killed process.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bert_core.backends.context import Precision, compute_dtype
from pipelines.cluster import answer_of, ask_node, connect, nodes
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import Observer, StageContext, send_note
from pipelines.train.settings import BatchSplit, least_workers

import ray  # isort: skip  (after pipelines.cluster, which sets its environment)
from ray.util.placement_group import placement_group, remove_placement_group

Device = Literal["cpu", "cuda"]
Node = Mapping[str, float]  # its resources, as Ray counts them: {"CPU": 64.0, "GPU": 8.0}

_ANSWER_SECONDS = 60.0  # of a node; a worker's first import of torch takes some of them
_POLL_SECONDS = 1.0
# Sizes that CPUs train fastest with one rank of one thread on each core: docs/decisions/0012.
SINGLE_THREADED_SIZES = frozenset({"tiny", "mini", "small"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What the workers compute on and in."""

    device: Device
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

    def __str__(self) -> str:
        count = self.num_workers
        workers = f"{count[0]} to {count[1]}" if isinstance(count, tuple) else f"{count}"
        return f"{workers} x {_in_words(self.cpus, use_gpu=self.use_gpu)}"


def resolve(precision: Precision, context: StageContext) -> tuple[Arithmetic, StageContext]:
    """What a training run computes in, and the context whose ranks get that device and no other.

    Without RAY_ADDRESS this machine decides; on a cluster one of the nodes that workers may get,
    with GPUs if they get them. That needs no free CPU or GPU: the artifact may exist already. A
    cluster without such a node is waited for, as `wait_for_room` does. Raises UserError if GPUs are
    wanted and there is none, and if the node does not answer.
    """
    runtime = context.runtime
    if "RAY_ADDRESS" in os.environ:
        arithmetic = _of_cluster(precision, runtime, context.observe)
    else:
        has_gpu = torch.cuda.is_available()
        if runtime.device == "gpu" and not has_gpu:
            raise UserError(
                "runtime.device=gpu needs a GPU, and this machine has none; set "
                "runtime.device=auto or add a node with GPUs"
            )
        arithmetic = _here(precision, "cuda" if has_gpu and runtime.device != "cpu" else "cpu")
    # Ray may count other GPUs than torch sees: an artifact is not named after one device and
    # trained on another.
    device = "gpu" if arithmetic.device == "cuda" else "cpu"
    return arithmetic, replace(context, runtime=runtime.model_copy(update={"device": device}))


def _here(precision: Precision, device: Device) -> Arithmetic:
    is_bf16 = compute_dtype(precision, device) == torch.bfloat16
    return Arithmetic(
        device=device,
        precision="bf16" if is_bf16 else "float32",
        torch=torch.__version__,
    )


def _of_cluster(precision: Precision, runtime: RuntimeSettings, observe: Observer) -> Arithmetic:
    connect()
    node = _largest_node(runtime)
    if node is None:
        one = runtime.model_copy(update={"training_workers": 1})
        wait_for_room(one, observe, "training")
        node = _largest_node(runtime)
    cluster = f"the cluster at {os.environ['RAY_ADDRESS']}"
    device: Device = "cuda" if uses_gpu(runtime, nodes()) else "cpu"
    if node is None:
        raise UserError(
            f"{cluster} has no node with a {'GPU' if device == 'cuda' else 'CPU'} for the training "
            "run; set runtime.device=auto, add a node, or raise runtime.wait_for_nodes_seconds "
            "where an autoscaler adds nodes"
        )
    answer = ask_node(node, _here, precision, device, max_retries=3)
    arithmetic: Arithmetic = answer_of(answer, f"the node {node} of {cluster}", _ANSWER_SECONDS)
    return arithmetic


def _largest_node(runtime: RuntimeSettings) -> str | None:
    """The id of the node with most of what workers get; None where no node has any."""
    resource = "GPU" if uses_gpu(runtime, nodes()) else "CPU"
    sizes = [
        (node["Resources"].get(resource, 0), node["NodeID"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    most, node_id = max(sizes, default=(0, ""))
    return node_id if most >= 1 else None


def schedule(
    runtime: RuntimeSettings, nodes: Sequence[Node], split: BatchSplit, *, one_thread_each: bool
) -> Placement:
    """Fit the workers that `runtime` asks for to the `nodes` of a cluster.

    Where the number of workers is "auto": one a GPU; without GPUs one a core of the largest node
    if `one_thread_each` is what the model trains fastest with, else as many as nodes. Neither that
    nor the end of a range is more than a step has micro-batches. CPUs are shared out, to every
    worker as many. Raises UserError where the workers do not fit.
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
    if room < least:
        raise UserError(
            f"{least} training workers with {_in_words(cpus, use_gpu=use_gpu)} each do not fit the "
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


def wait_for_room(runtime: RuntimeSettings, observe: Observer, stage: str) -> None:
    """Wait until the cluster has room for the least workers of `runtime`, with a note of `stage`.

    It returns at the latest after `runtime.wait_for_nodes_seconds`; `schedule` then refuses what
    still has no room. However the wait ends, the request for nodes ends with it.
    """
    seconds = runtime.wait_for_nodes_seconds or 0
    if not (seconds and os.environ.get("RAY_ADDRESS")) or _has_room(runtime):
        return
    cpus, use_gpu = runtime.cpus_per_worker or 1, uses_gpu(runtime, nodes())
    least = least_workers(runtime)
    note = (
        f"{stage}: waiting up to {seconds} s for nodes with room for {least} x "
        f"{_in_words(cpus, use_gpu=use_gpu)}, found {listed(nodes())}"
    )
    send_note(observe, stage, note)
    ends = time.monotonic() + seconds
    group = placement_group([{"CPU": cpus, **({"GPU": 1} if use_gpu else {})}] * least)
    try:
        # In slices: Ray interrupts a task that it cancels without a signal that would wake it.
        while time.monotonic() < ends and not _has_room(runtime):
            time.sleep(_POLL_SECONDS)
    finally:
        if ray.is_initialized():  # else it has ended with this process's connection
            remove_placement_group(group)


def _has_room(runtime: RuntimeSettings) -> bool:
    up = nodes()
    room = room_on_nodes(up, runtime.cpus_per_worker or 1, use_gpu=uses_gpu(runtime, up))
    return room >= least_workers(runtime)


def listed(nodes: Sequence[Node]) -> str:
    """The nodes and their resources, for messages."""
    return "; ".join(f"{n.get('CPU', 0):g} CPU and {n.get('GPU', 0):g} GPU" for n in nodes)


def _in_words(cpus: int, *, use_gpu: bool) -> str:
    return f"{cpus} CPU and 1 GPU" if use_gpu else f"{cpus} CPU"
