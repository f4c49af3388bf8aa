"""A cluster whose nodes are brought by Ray's own autoscaler, of the version that KubeRay runs.

Ray's `AutoscalingCluster` would be that, but it ends every Ray process of the machine first, and
reads a file that Ray's package lacks.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.fake_multi_node.node_provider import (
    FAKE_HEAD_NODE_ID,
    FAKE_HEAD_NODE_TYPE,
    FakeMultiNodeProvider,
)
from ray.autoscaler.tags import TAG_RAY_USER_NODE_TYPE

from tests.integration.raylets import Node, Raylets, raylets, start_node

_COMMANDS = (
    "initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray",
)  # fmt: skip
_ADDRESS = "address"  # the file in which the head's is found


class Machines(FakeMultiNodeProvider):
    """What the autoscaler's process starts and ends machines with: Ray nodes with agents' ports."""

    def _create_node_with_resources_and_labels(
        self, node_config: Any, tags: dict[str, str], count: int, resources: Any, labels: Any
    ) -> None:
        folder = Path(self.provider_config["folder"])
        with self.lock:
            name = self._next_hex_node_id()
            node = start_node(
                folder / f"m{self._next_node_id}",
                f"127.0.1.{self._next_node_id}",
                int(resources["CPU"]),
                {
                    **os.environ,
                    "RAY_CLOUD_INSTANCE_ID": name,
                    "RAY_NODE_TYPE_NAME": tags[TAG_RAY_USER_NODE_TYPE],
                },
                f"--address={(folder / _ADDRESS).read_text()}",
            )
            self._nodes[name] = {"tags": dict(tags), "node": node}

    def _terminate_node(self, node: dict[str, Node]) -> None:
        node["node"].end()


@contextmanager
def autoscaled(num_cpus: int, most: int) -> Iterator[Raylets]:
    """A head without CPUs; its autoscaler adds up to `most` nodes with so many CPUs each.

    A node that nobody needs goes after some seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix="a-"))
    configuration = {
        "cluster_name": "autoscaled",
        "max_workers": most,
        "idle_timeout_minutes": 0.2,
        "upscaling_speed": 100.0,
        # What Ray would do on machines that it reaches by itself.
        **{f"{each}_commands": [] for each in _COMMANDS},
        "cluster_synced_files": [],
        "file_mounts": {},
        "provider": {
            "type": "external",
            "module": f"{__name__}.{Machines.__name__}",
            "head_node_id": FAKE_HEAD_NODE_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
            "folder": str(folder),
        },
        "head_node_type": FAKE_HEAD_NODE_TYPE,
        "available_node_types": {
            FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "cpu": {"resources": {"CPU": num_cpus}, "node_config": {}, "max_workers": most},
        },
    }  # fmt: skip
    written = folder / "autoscaling.yaml"
    written.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    of_head = {
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": FAKE_HEAD_NODE_TYPE,
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    }
    try:
        with raylets(head_arguments=[f"--autoscaling-config={written}"], **of_head) as cluster:
            (folder / _ADDRESS).write_text(cluster.address)
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)
