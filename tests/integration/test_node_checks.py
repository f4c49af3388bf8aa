"""Nodes that run other code, or do not see the store, are refused before anything is spent."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pipelines import cluster as cluster_module
from pipelines.store import ArtifactStore
from pipelines.versions import computing_versions, source_folders
from tests.command_line import last_object

pytestmark = pytest.mark.slow

# A head without CPUs and a node whose own Bertsmith is another one. Where the system lets us, the
# node has a disk of its own: what others write below `hidden` it does not see.
CLUSTER = """
import json, os, subprocess, sys
from ray.cluster_utils import Cluster

MEMORY = 80 * 2**20
other, hidden = sys.argv[1:]
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False},
)
start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start",
    f"--address={cluster.address}", "--num-cpus=1", f"--object-store-memory={MEMORY}", "--block"]
apart = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', hidden]
can_hide = subprocess.run([*apart, "true"]).returncode == 0
node = subprocess.Popen(
    [*apart, *start] if can_hide else start, env={**os.environ, "PYTHONPATH": other},
    stdout=subprocess.DEVNULL,
)
print(json.dumps([cluster.address, can_hide]), flush=True)
sys.stdin.read()
node.terminate()
node.wait()
cluster.shutdown()
"""

ASKING = """
import json, os, sys, time
from pathlib import Path
import ray
from pipelines.store import ArtifactStore
from pipelines.cluster import check_nodes, connect, map_tasks
from pipelines.errors import UserError
from pipelines.versions import computing_versions

store, is_shipped, database = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[1], "mlflow.db")
deadline = time.monotonic() + 120

def versions(item):
    from pipelines.versions import computing_versions
    return computing_versions()

if not is_shipped:
    ray.init(log_to_driver=False)
else:
    connect()
while ray.cluster_resources().get("CPU") != 1:
    assert time.monotonic() < deadline, "the node must join"
    time.sleep(0.2)
told = {}
try:
    check_nodes(ArtifactStore(store), database)
    told["same"] = map_tasks(versions, [0], num_workers=1) == [computing_versions()]
except UserError as error:
    told["refused"] = str(error)
told["left"] = sorted(os.listdir(store))
print(json.dumps(told))
"""


class Cluster(NamedTuple):
    """What processes that use it need in their environment, and what its node does not see."""

    environment: dict[str, str]
    hidden: Path | None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    other = tmp_path_factory.mktemp("other")
    for folder in source_folders():
        shutil.copytree(folder, other / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "bert_core" / "config.py").open("a") as changed:
        changed.write("# another version\n")
    hidden = tmp_path_factory.mktemp("hidden")
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as ray_folder:
        environment |= {
            "RAY_TMPDIR": ray_folder,
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": str(source_folders()[0].parent),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # the nodes join from processes of their own
        }
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(other), str(hidden)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            cwd=tmp_path_factory.mktemp("cluster"),
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the cluster must start"
        address, can_hide = json.loads(line)
        yield Cluster(environment | {"RAY_ADDRESS": address}, hidden if can_hide else None)
        process.communicate(timeout=120)


def told(cluster: Cluster, store: Path, *, is_shipped: bool) -> dict:
    completed = subprocess.run(
        [sys.executable, "-c", ASKING, str(store), json.dumps(is_shipped)],
        capture_output=True, text=True, timeout=300, check=False,
        env=cluster.environment, cwd=cluster.environment["RAY_TMPDIR"],
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    return last_object(completed.stdout)


def test_a_node_with_other_code_runs_what_the_driver_ships(cluster, tmp_path: Path) -> None:
    assert told(cluster, tmp_path, is_shipped=True) == {"same": True, "left": []}


def test_a_node_with_other_code_is_refused_where_nothing_was_shipped(
    cluster, tmp_path: Path
) -> None:
    """As after a `ray.init` of one's own, in a notebook."""
    found = told(cluster, tmp_path, is_shipped=False)
    assert "runs other versions than this process, Bertsmith's" in found["refused"]
    assert "install the same on both, or take that node out" in found["refused"]
    assert found["left"] == []


def test_a_folder_that_a_node_does_not_see_is_no_store_of_the_cluster(cluster: Cluster) -> None:
    if cluster.hidden is None:
        pytest.skip("this system gives a process no mounts of its own")
    (cluster.hidden / "corpus").mkdir()
    found = told(cluster, cluster.hidden, is_shipped=True)
    assert "cannot use the store" in found["refused"]
    assert ": it does not see it; choose a runtime.store that all nodes share" in found["refused"]
    assert found["left"] == ["corpus"]


def test_a_tracker_that_is_a_file_is_for_nodes_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    store.filesystem.pipe_file(f"{store.root}/probe", b"")
    question = (store, f"{store.root}/probe", computing_versions())
    database = tmp_path / "mlflow.db"
    assert cluster_module._problem(*question, platform.node(), database) == ""
    assert cluster_module._problem(*question, "another", None) == ""
    refused = cluster_module._problem(*question, "another", database)
    assert (
        f"cannot reach the tracker, to which a training run's first worker reports: {database}"
        in (refused)
    )
