"""The device and precision of a training run, decided before it starts: they decide its bits.

On a cluster this needs nodes, which an autoscaler may have to add. They are requested with a
placement group: those of several training runs wait side by side, and each ends with the process
that made it. Ray's `request_resources` holds one request for the whole cluster. It would outlive a
killed process, and Ray Train overwrites it every 20 s for its ranges of workers.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from bert_core.backends.context import Precision, compute_dtype
from pipelines.cluster import answer_of, ask_node, connect, nodes
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import Observer, StageContext, ignore, send_note
from pipelines.train.placement import (
    Node,
    after_waiting,
    least_workers,
    listed,
    room_on_nodes,
    uses_gpu,
)

import ray  # isort: skip  (after pipelines.cluster, which sets its environment)
from ray.util.placement_group import placement_group, remove_placement_group

Device = Literal["cpu", "cuda"]

_ANSWER_SECONDS = 60.0  # of a node; a worker's first import of torch takes some of them


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


def resolve(precision: Precision, context: StageContext) -> tuple[Arithmetic, StageContext]:
    """What a training run computes in, and the context whose ranks get that device and no other.

    The device is decided here alone: Ray may count other GPUs than torch sees, and an artifact
    must not be named after one device and trained on another. Raises UserError as `arithmetic_of`.
    """
    arithmetic = arithmetic_of(precision, context.runtime, context.observe)
    runtime = context.runtime.model_copy(
        update={"device": "gpu" if arithmetic.device == "cuda" else "cpu"}
    )
    return arithmetic, replace(context, runtime=runtime)


def arithmetic_of(
    precision: Precision, runtime: RuntimeSettings, observe: Observer = ignore
) -> Arithmetic:
    """What `precision` means where the workers of `runtime` will run.

    Without RAY_ADDRESS that is this machine. On a cluster a task on one of the nodes that workers
    may get decides, one with GPUs if they get them; all nodes then compute in the same format. The
    task waits for no free CPU or GPU. If there is no such node yet, a single one is waited for (as
    `wait_for_room` does, with a note to `observe`), since the artifact may exist already. Raises
    UserError if GPUs are wanted and there is none, and if the node does not answer.
    """
    if "RAY_ADDRESS" not in os.environ:
        device: Device = "cuda" if runtime.device != "cpu" and torch.cuda.is_available() else "cpu"
        if device == "cpu" and runtime.device == "gpu":
            raise UserError(
                "runtime.device=gpu needs a GPU, and this machine has none; set "
                "runtime.device=auto or add a node with GPUs"
            )
        return _here(precision, device)
    connect()
    cluster = f"the cluster at {os.environ['RAY_ADDRESS']}"
    wants_gpu, node_id = _node_of(runtime)
    waited_seconds = 0.0
    if node_id is None:
        waited_seconds = wait_for_room(
            runtime.model_copy(update={"training_workers": 1}), observe, "training"
        )
        wants_gpu, node_id = _node_of(runtime)
    if node_id is None:
        raise UserError(_no_node(cluster, waited_seconds, wants_gpu=wants_gpu))
    asked = ask_node(node_id, _here, precision, "cuda" if wants_gpu else "cpu", max_retries=3)
    found: Arithmetic = answer_of(asked, f"the node {node_id} of {cluster}", _ANSWER_SECONDS)
    return found


def _node_of(runtime: RuntimeSettings) -> tuple[bool, str | None]:
    """Whether workers get GPUs, and the id of the node with most of what they get; None without.

    It is the same in every process.
    """
    wants_gpu = uses_gpu(runtime, nodes())
    resource = "GPU" if wants_gpu else "CPU"
    found = [
        (node["Resources"].get(resource, 0), node["NodeID"])
        for node in ray.nodes()
        if node["Alive"]
    ]
    most, node_id = max(found, default=(0, ""))
    return wants_gpu, node_id if most >= 1 else None


def trains_best_on_single_threads(size: str | None) -> bool:
    """Whether CPUs train an encoder of this size fastest with one rank of one thread on each core.

    Measured in docs/decisions/0012; sizes that were not are taken for large.
    """
    return size in _SINGLE_THREADED_SIZES


_SINGLE_THREADED_SIZES = frozenset({"tiny", "mini", "small"})


def _here(precision: Precision, device: Device) -> Arithmetic:
    is_bf16 = compute_dtype(precision, device) == torch.bfloat16
    return Arithmetic(
        device=device,
        precision="bf16" if is_bf16 else "float32",
        torch=torch.__version__,
    )


def _no_node(cluster: str, waited_seconds: float, *, wants_gpu: bool) -> str:
    wanted = "GPU for runtime.device=gpu" if wants_gpu else "node with a CPU for the training run"
    remedy = "set runtime.device=auto, add a node with GPUs" if wants_gpu else "add a node"
    return (
        f"{cluster} has no {wanted}{after_waiting(waited_seconds)}; {remedy}, or "
        "raise runtime.wait_for_nodes_seconds where an autoscaler adds nodes"
    )


_SLICE_SECONDS = 1.0  # Ray interrupts a task that it cancels without a signal that would wake it


def wait_for_room(runtime: RuntimeSettings, observe: Observer, stage: str) -> float:
    """Wait until the cluster has room for the least workers of `runtime`; returns the seconds.

    It returns at the latest after `runtime.wait_for_nodes_seconds`; `schedule` then refuses what
    still has no room. `observe` gets one note, of `stage`. However the wait ends, the request for
    nodes ends with it.
    """
    patience = runtime.wait_for_nodes_seconds or 0
    up = nodes()
    if not (patience and os.environ.get("RAY_ADDRESS")) or _have_room(up, runtime):
        return 0.0
    wanted = bundles(runtime, up)
    note = (
        f"{stage}: waiting up to {patience:.0f} s for nodes with room for {len(wanted)} x "
        f"{_in_words(wanted[0])}, found {listed(up)}"
    )
    send_note(observe, stage, note)
    started = time.monotonic()
    with _asked_for(wanted):
        while time.monotonic() - started < patience and not _have_room(nodes(), runtime):
            time.sleep(_SLICE_SECONDS)
    return time.monotonic() - started


def bundles(runtime: RuntimeSettings, up: Sequence[Node]) -> list[dict[str, float]]:
    """The resources of each of the least workers of `runtime`, as Ray counts them.

    They include GPUs if the recipe says so or, with `auto`, if one of the nodes that are `up` has
    any: an autoscaler does not say what else it could add.
    """
    each: dict[str, float] = {"CPU": runtime.cpus_per_worker or 1}
    if uses_gpu(runtime, up):
        each["GPU"] = 1
    return [dict(each) for _ in range(least_workers(runtime))]


def _have_room(up: Sequence[Node], runtime: RuntimeSettings) -> bool:
    room = room_on_nodes(up, runtime.cpus_per_worker or 1, use_gpu=uses_gpu(runtime, up))
    return room >= least_workers(runtime)


@contextmanager
def _asked_for(wanted: list[dict[str, float]]) -> Iterator[None]:
    group = placement_group(wanted)
    try:
        yield
    finally:
        if ray.is_initialized():  # else it has ended with this process's connection
            remove_placement_group(group)


def _in_words(bundle: dict[str, float]) -> str:
    return " and ".join(f"{number:g} {resource}" for resource, number in bundle.items())
