"""A training run on a cluster without nodes: Ray's autoscaler brings them if asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.store import Artifact
from tests.integration.autoscaled import autoscaled
from tests.integration.raylets import Raylets
from tests.integration.recorded_training import ROOT, SETTINGS, Outcome, TrainingRun, step_starts
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

NUM_STEPS = 20
LOOKING = (
    "from pipelines.cluster import connect, nodes; connect(); print('nodes:', len(nodes()) - 1)"
)


def num_nodes(cluster: Raylets) -> int:
    """How many live beside the head."""
    answer = subprocess.run(
        [sys.executable, "-c", LOOKING], text=True, capture_output=True, timeout=200, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **cluster.driver_env},
    )  # fmt: skip
    # Ray prints its own lines around ours.
    return int(re.findall(r"^nodes: (\d+)$", answer.stdout, re.MULTILINE)[0])


def test_nodes_come_where_the_run_waits_for_them_and_go_again(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    def training(wait_for_nodes_seconds: int) -> TrainingRun:
        return TrainingRun(
            data=str(Path(small_examples.root).parents[1]), examples=small_examples.fingerprint,
            vocabulary=small_vocabulary.fingerprint, store=str(tmp_path / "store"),
            record=str(tmp_path / "notes"), workers=2, threads=2,  # so that each takes a node
            settings={**SETTINGS, "num_steps": NUM_STEPS},
            wait_for_nodes_seconds=wait_for_nodes_seconds,
        )  # fmt: skip

    with autoscaled(2, 2) as cluster:
        with pytest.raises(RuntimeError, match=r"add nodes, raise runtime\.wait_for_nod"):
            Outcome.of(training(0).start(**cluster.driver_env))
        assert num_nodes(cluster) == 0
        job = training(300)
        outcome = Outcome.of(job.start(**cluster.driver_env))
        assert len(outcome.losses()) == NUM_STEPS
        assert {each.num_ranks for each in step_starts(Path(job.record))} == {2}
        wait_for(lambda: not num_nodes(cluster), "the nodes' end")
