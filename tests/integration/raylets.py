"""Ray nodes on one machine, as separate as possible.

Each node is a separate raylet with its own loopback address, home, cache and temporary folders. A
node is lost when its raylet gets SIGKILL; another one may join at any time.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from flows.local.health import free_port
from pipelines import cluster  # sets the environment of Ray's processes

assert cluster

ROOT = Path(__file__).parents[2]
_OBJECT_STORE_BYTES = 80 * 2**20
_START_SECONDS = 330.0
_LOST_SECONDS = 60.0
_TRIES = 3
# A raylet waits 15 seconds, and no setting changes that, for each agent that chooses its own port,
# and ends if imports take longer (ray issue 65983), so the ports are fixed.
_AGENT_PORTS = (
    "metrics-export-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
)
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")
_START = "from ray.scripts.scripts import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: its process and its folder."""

    address: str  # its IP address on the loopback
    process: subprocess.Popen[bytes]  # `ray start --block`
    folder: Path

    def processes(self) -> list[psutil.Process]:
        """All running processes of the node."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def raylet(self) -> psutil.Process:
        """The process whose end is the node's. Raises RuntimeError if it has ended."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # workers come and go
                if process.name() == "raylet":
                    return process
        raise RuntimeError(f"the node {self.address} no longer has a raylet")

    def end(self) -> None:
        """Send SIGKILL to all its processes."""
        processes = self.processes()
        self.process.kill()
        self.process.wait()
        for process in processes:
            _kill(process)


class Raylets:
    """A head, and the nodes that join it."""

    def __init__(
        self,
        folder: Path,
        num_cpus: int,
        environment: Mapping[str, str],
        head_arguments: Sequence[str] = (),
    ) -> None:
        self.folder = folder  # with a subfolder for each node
        self._environment = environment
        self._authentication = {
            name: environment[name] for name in _AUTHENTICATION if name in environment
        }
        self._started = 0
        self._all: list[Node] = []
        self.nodes: list[Node] = []  # that joined and were not lost
        self._seen: list[psutil.Process] = []
        with socket.socket() as free:
            free.bind(("127.0.0.2", 0))
            self._port = free.getsockname()[1]
        self.address = f"127.0.0.2:{self._port}"
        self.head = self._start(
            num_cpus, "--head", f"--port={self._port}", "--include-dashboard=false", *head_arguments
        )  # fmt: skip
        try:
            self._wait_for(self.head)
        except RuntimeError:
            self.close()
            raise

    @property
    def driver_env(self) -> dict[str, str]:
        """Environment of a driver that uses this cluster."""
        return {"RAY_ADDRESS": self.address, **self._authentication}

    def join(self, num_cpus: int) -> Node:
        """Start a node with `num_cpus` CPUs; returns it once the head knows it."""
        (node,) = self.join_all(num_cpus)
        return node

    def join_all(self, *num_cpus: int) -> list[Node]:
        """Start nodes with these numbers of CPUs, all at the same time."""
        started = [self._start(count, f"--address={self.address}") for count in num_cpus]
        nodes = [self._joined(node, count) for node, count in zip(started, num_cpus, strict=True)]
        self.nodes += nodes
        return nodes

    def _joined(self, node: Node, num_cpus: int) -> Node:
        """The node, or its replacement: on a busy machine a raylet may give up."""
        for tries_left in reversed(range(_TRIES)):
            try:
                self._wait_for(node)
            except RuntimeError:
                node.end()  # else it may still join, as one node too many
                if not tries_left:
                    raise
                node = self._start(num_cpus, f"--address={self.address}")
            else:
                return node
        raise AssertionError("the last try returns or raises")

    def lose(self, node: Node) -> None:
        """Kill a node's raylet, and with it everything that runs on the node."""
        self.nodes.remove(node)
        processes = node.processes()
        node.raylet().kill()
        with suppress(subprocess.TimeoutExpired):
            node.process.wait(_LOST_SECONDS)
        for process in processes:  # its agents may survive
            _kill(process)
        node.process.kill()
        node.process.wait()

    def close(self) -> None:
        """End all processes of all nodes."""
        for node in reversed(self._all):
            self._seen += node.processes()
            node.process.terminate()
        for node in self._all:
            try:
                node.process.wait(20)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
        for process in self._seen:
            _kill(process)

    def _start(self, num_cpus: int, *arguments: str) -> Node:
        self._started += 1
        address = f"127.0.0.{self._started + 1}"
        folder = self.folder / f"n{self._started}"
        node = start_node(folder, address, num_cpus, self._environment, *arguments)
        self._all.append(node)
        return node

    def _wait_for(self, node: Node) -> None:
        deadline = time.monotonic() + _START_SECONDS
        log = node.folder / "log"
        while "--block" not in (output := log.read_text(errors="replace")):
            if node.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the node {node.address} has not started; its output: {output}")
            time.sleep(0.1)


def start_node(
    folder: Path, address: str, num_cpus: int, environment: Mapping[str, str], *arguments: str
) -> Node:
    """Start a node with its own folder, without waiting; `arguments` say what it joins."""
    for name in ("home", "cache", "tmp"):
        (folder / name).mkdir(parents=True)
    own = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "BERTSMITH_CACHE": str(folder / "cache"),
    }
    command = [
        sys.executable, "-c", _START, "start", *arguments, "--block", f"--num-cpus={num_cpus}",
        f"--node-ip-address={address}", f"--temp-dir={folder / 'ray'}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}", "--disable-usage-stats",
        *(f"--{name}={free_port()}" for name in _AGENT_PORTS),
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment, **own},
            start_new_session=True,
        )
    return Node(address=address, process=process, folder=folder)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


@contextmanager
def raylets(
    num_cpus: int = 0, *, head_arguments: Sequence[str] = (), **environment: str
) -> Iterator[Raylets]:
    """A head with `num_cpus` CPUs, ended with all its nodes on exit.

    All processes get `environment` in addition to their own folders; the head is also started with
    `head_arguments`.
    """
    folder = Path(tempfile.mkdtemp(prefix="r-"))  # short: it contains sockets
    settings = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "disabled",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # else a head on the loopback has no nodes
        # Everything starts on busy cores, which takes minutes where Ray expects seconds.
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_gcs_server_port_wait_time_s": "120",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        **environment,
    }
    cluster = None
    try:
        cluster = Raylets(folder, num_cpus, settings, head_arguments)
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
