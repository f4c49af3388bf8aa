"""A training run on a cluster without nodes: Ray's autoscaler brings them if asked."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.store import Artifact
from tests.integration.autoscaled import autoscaled
from tests.integration.elastic import settings
from tests.integration.raylets import Raylets
from tests.integration.recorded_training import ROOT, Outcome, TrainingRun, step_starts

pytestmark = pytest.mark.slow

NUM_STEPS = 20
MOST_NODES = 2
WAITING = """
from pipelines.cluster import connect
from pipelines.settings import RuntimeSettings
from pipelines.train.placement import wait_for_room

connect()
ranks = RuntimeSettings(training_workers=64, wait_for_nodes_seconds=600)
wait_for_room(ranks, lambda progress: print(progress.note, flush=True), "pretraining")
"""
BRINGING = """
from pipelines.cluster import connect, nodes
from pipelines.settings import RuntimeSettings
from pipelines.train.placement import wait_for_room

connect()
ranks = RuntimeSettings(training_workers="auto", device="gpu", wait_for_nodes_seconds=120)
wait_for_room(ranks, lambda progress: print(progress.note, flush=True), "pretraining")
print(sorted(node["GPU"] for node in nodes() if "GPU" in node), len(nodes()) - 1)
"""
LOOKING = """
import ray
from pipelines.cluster import connect, nodes

connect()
states = {group["state"] for group in ray.util.placement_group_table().values()}
print(len(nodes()) - 1, *sorted(states))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    """A head without CPUs, and no node until someone asks for it."""
    with autoscaled(2, MOST_NODES) as cluster:
        yield cluster


def program(code: str, cluster: Raylets) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **cluster.driver_env},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def found(cluster: Raylets) -> list[str]:
    """How many nodes live beside the head, and the states of all that was ever asked for."""
    said, complaints = program(LOOKING, cluster).communicate(timeout=200)
    assert said, complaints
    return said.splitlines()[-1].split()


def await_none(cluster: Raylets) -> None:
    """Until the autoscaler has taken all nodes away: nothing is asked for, and nobody uses them."""
    deadline = time.monotonic() + 120
    while (seen := found(cluster))[0] != "0":
        assert time.monotonic() < deadline, seen


def training(
    examples: Artifact, vocabulary: Artifact, folder: Path, wait_for_nodes_seconds: int
) -> TrainingRun:
    return TrainingRun(
        data=str(Path(examples.root).parents[1]), examples=examples.fingerprint,
        vocabulary=vocabulary.fingerprint, store=str(folder / "store"),
        record=str(folder / "notes"), workers=2, threads=2,  # so that each takes a node
        settings=settings(NUM_STEPS), wait_for_nodes_seconds=wait_for_nodes_seconds,
    )  # fmt: skip


def test_without_a_wait_a_training_is_refused_and_no_node_comes(
    cluster: Raylets, small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    job = training(small_examples, small_vocabulary, tmp_path, 0)
    with pytest.raises(RuntimeError, match=r"add nodes, raise runtime\.wait_for_nod"):
        Outcome.of(job.start(**cluster.driver_env))
    assert found(cluster)[0] == "0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_one_who_waits_ends_nothing_is_asked_for_any_more(
    cluster: Raylets, number: signal.Signals
) -> None:
    waiting = program(WAITING, cluster)
    try:
        assert waiting.stdout is not None
        assert "waiting up to 600 s for nodes with room for 64 x 1 CPU" in waiting.stdout.readline()
        assert "PENDING" in found(cluster)
        waiting.send_signal(number)
        _, complaints = waiting.communicate(timeout=60)
    finally:
        waiting.kill()
    assert waiting.returncode, complaints
    deadline = time.monotonic() + 60
    while "PENDING" in (seen := found(cluster)):
        assert time.monotonic() < deadline, seen
    assert seen[0] == "0"


def test_a_gpu_is_brought_where_one_is_asked_for(cluster: Raylets) -> None:
    said, complaints = program(BRINGING, cluster).communicate(timeout=200)
    told, seen = said.splitlines()
    assert "for nodes with room for 1 x 1 CPU and 1 GPU, found" in told, complaints
    assert seen == "[1.0] 1"
    await_none(cluster)


def test_with_a_wait_it_runs_to_its_end_on_nodes_that_came_and_that_go_again(
    cluster: Raylets, small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    job = training(small_examples, small_vocabulary, tmp_path, 300)
    outcome = Outcome.of(job.start(**cluster.driver_env))
    assert len(outcome.losses()) == NUM_STEPS
    assert {each.num_ranks for each in step_starts(Path(job.record))} == {2}
    await_none(cluster)
