"""A cluster of a small and a larger node: the ranks of a training run go where they fit."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.command_line import last_object

pytestmark = pytest.mark.slow

# Another user of this machine, who names no cluster.
NEIGHBOUR = """
import json
from pipelines.cluster import connect, disconnect, local_cpus, nodes
connect()
print(json.dumps([node["CPU"] for node in nodes()] == [local_cpus()]))
disconnect()
"""

TRAINING = """
import json, os, subprocess, sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from pipelines.cluster import connect, nodes

import ray
import ray.train
from ray.cluster_utils import Cluster

from pyarrow.fs import LocalFileSystem

from pipelines.store import ArtifactStore
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.train.checkpoint import CheckpointFolder
from pipelines.train.worker import TrainingJob
from pipelines.train.launch import launched
from pipelines.train.settings import BatchSplit
from pipelines.train.ranks import sum_over_ranks
from pipelines.train.settings import TrainingSettings

MEMORY = 80 * 2**20
CUT = BatchSplit(section="pretraining", global_batch_size=16, micro_batch_size=4)


@dataclass(frozen=True, kw_only=True)
class MixedJob(TrainingJob):
    name: ClassVar[str] = "mixed"
    larger: str
    told: str

    def on_rank(self):
        is_larger = np.array([int(ray.get_runtime_context().get_node_id() == self.larger)])
        told = {
            "threads": torch.get_num_threads(),
            "ranks_on_the_larger_node": int(sum_over_ranks(is_larger)[0]),
        }
        if ray.train.get_context().get_world_rank() == 0:
            Path(self.told).write_text(json.dumps(told))
        raise UserError("that is all")


def train(num_workers, folder):
    context = StageContext(store=ArtifactStore(folder),
                           runtime=RuntimeSettings(training_workers=num_workers))
    told = Path(folder) / "told.json"
    job = MixedJob(
        stage="mixed", settings=TrainingSettings(), precision="float32", cut=CUT,
        larger=larger.node_id, told=str(told),
    )
    checkpoints = CheckpointFolder(f"{folder}/work", LocalFileSystem())
    try:
        with launched(job, checkpoints, context, None):
            pass
    except UserError as error:
        if "that is all" not in str(error):
            raise
    return json.loads(told.read_text())


cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False},
)
larger = cluster.add_node(num_cpus=4, object_store_memory=MEMORY)
told_by_neighbour = subprocess.run(
    [sys.executable, "-c", sys.argv[2]], capture_output=True, text=True, check=True
).stdout
os.environ["RAY_ADDRESS"] = cluster.address
connect()
told = {"neighbour": json.loads(told_by_neighbour), "two": train(2, sys.argv[1])}
told["cpus"] = sorted(node["CPU"] for node in nodes())
try:
    train(6, sys.argv[1])
except UserError as error:
    told["six"] = str(error)
print(json.dumps(told))
ray.shutdown()
cluster.shutdown()
"""


def test_two_ranks_share_the_node_that_holds_them_and_six_are_refused(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    # Its address is written down there, for this test alone; sockets want a short path.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_folder:
        completed = subprocess.run(
            [sys.executable, "-c", TRAINING, str(tmp_path), NEIGHBOUR],
            capture_output=True, text=True, timeout=500, check=False,
            env=environment | {"RAY_TMPDIR": ray_folder},
        )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    told = last_object(completed.stdout)
    assert told["neighbour"], "a Ray of one's own must start beside another one"
    assert told["cpus"] == [1, 4]
    # Shared with the head's one CPU, each would have had a single thread.
    assert told["two"] == {"threads": 2, "ranks_on_the_larger_node": 2}
    assert "6 training workers with 1 CPU each do not fit the cluster" in told["six"]
