"""Waiting for the nodes that a cluster's autoscaler adds where a training run has no room yet.

What asks for them is a placement group. Those of several training runs wait side by side, and each
ends with the process that made it, however that ends. The one request that Ray's
`request_resources` keeps for a whole cluster would outlive a process that was killed and hold its
nodes, and Ray Train overwrites it every 20 s for its ranges of workers.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipelines.cluster.connection import nodes
from pipelines.cluster.ranks import Ranks
from pipelines.stage import Observer, Progress
from pipelines.training.placement import Node, least_workers, listed, room_on_nodes, uses_gpu

import ray  # isort: skip  (after pipelines.cluster.connection, which sets its environment)
from ray.util.placement_group import placement_group, remove_placement_group

_SLICE_SECONDS = 1.0  # Ray interrupts a task that it cancels without a signal that would wake it


def wait_for_room(ranks: Ranks, observe: Observer, stage: str) -> float:
    """The seconds that the least workers of `ranks` were waited for; 0 where they had room at once.

    It asks the cluster that RAY_ADDRESS names, to which this process is connected, and returns as
    soon as live nodes have room, at the latest after `ranks.wait_for_nodes_seconds`: `schedule`
    then refuses what still has none. `observe` gets one note, of `stage`. Whatever ends the wait,
    nothing is asked for any more.
    """
    patience = ranks.wait_for_nodes_seconds
    up = nodes()
    if not (patience and os.environ.get("RAY_ADDRESS")) or _have_room(up, ranks):
        return 0.0
    wanted = bundles(ranks, up)
    note = (
        f"{stage}: waiting up to {patience:.0f} s for nodes with room for {len(wanted)} x "
        f"{_in_words(wanted[0])}, found {listed(up)}"
    )
    observe(Progress(stage=stage, done=0, total=0, unit="steps", note=note))
    started = time.monotonic()
    with _asked_for(wanted):
        while time.monotonic() - started < patience and not _have_room(nodes(), ranks):
            time.sleep(_SLICE_SECONDS)
    return time.monotonic() - started


def bundles(ranks: Ranks, up: Sequence[Node]) -> list[dict[str, float]]:
    """What the least workers of `ranks` take, one by one, as Ray counts it.

    GPUs are asked for where they are wished for or, left open, where one of the nodes that are `up`
    has any: no autoscaler says what else it could add.
    """
    each: dict[str, float] = {"CPU": ranks.cpus_per_worker or 1}
    if uses_gpu(ranks, up):
        each["GPU"] = 1
    return [dict(each) for _ in range(least_workers(ranks))]


def _have_room(up: Sequence[Node], ranks: Ranks) -> bool:
    room = room_on_nodes(up, ranks.cpus_per_worker or 1, use_gpu=uses_gpu(ranks, up))
    return room >= least_workers(ranks)


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
