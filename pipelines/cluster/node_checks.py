"""Whether the nodes of a cluster can take part: they run this code, see this store and tracker.

This is checked in seconds, before anything is built there, and not for a local Ray.
"""

import logging
import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fsspec import AbstractFileSystem

from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.access import nearest_existing, store_errors, store_errors_explained
from pipelines.cluster.connection import connect
from pipelines.cluster.mapping import answer_of, ask_node
from pipelines.config.errors import UserError, first_line
from pipelines.config.versions import computing_versions

import ray  # isort: skip  (after pipelines.cluster.connection, which sets its environment)

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 120.0  # of all nodes; what is shipped to them has to arrive first
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PREFIX = ".probe-"  # no kind of artifact has such a name

# Nodes that answered well, each with the store and the database that it saw.
_known: set[tuple[str, str, Path | None]] = set()


# A path, and what identifies its file or folder on any machine.
_Seen = tuple[Path, str, int, int]


def _seen(path: Path) -> _Seen:
    """As this process sees it; raises OSError where it does not."""
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()
    status = path.stat()
    return path, machine, status.st_dev, status.st_ino


@dataclass(frozen=True, slots=True)
class Probe:
    """A file just written to a store, to be read by other processes."""

    filesystem: AbstractFileSystem
    path: str
    content: bytes

    def trouble(self) -> str:
        """Why this process cannot use the store, in a few words; empty where it can.

        It reads the other process's file, and writes and removes one of its own.
        """
        own = f"{self.path}-{uuid.uuid4().hex}"
        try:
            if self.filesystem.cat_file(self.path) != self.content:
                return "finds another file there than was written"
            self.filesystem.pipe_file(own, self.content)
            self.filesystem.rm_file(own)
        except FileNotFoundError:
            return "does not see it"
        except store_errors() as error:
            return f"cannot read and write it ({first_line(error)})"
        return ""


@contextmanager
def probe(store: ArtifactStore) -> Iterator[Probe]:
    """A probe in `store` for as long as the block lasts.

    Raises UserError where the store cannot be written.
    """
    name = f"{_PREFIX}{uuid.uuid4().hex}"
    path = f"{store.root}/{name}"
    with store_errors_explained(store.url):
        store.filesystem.makedirs(store.root, exist_ok=True)
        store.filesystem.pipe_file(path, name.encode())
    try:
        yield Probe(store.filesystem, path, name.encode())
    finally:
        with store_errors_explained(store.url):
            store.filesystem.rm_file(path)


class _Answer(NamedTuple):
    versions: dict[str, str]
    trouble: str  # with the store
    sees_database: bool


def check_nodes(store: ArtifactStore, database: Path | None = None) -> None:
    """Check that every node of the cluster that RAY_ADDRESS names can work with this process.

    `database` is the tracker's, if it is a file that the first worker of a training run would
    open. Raises UserError, naming the node, for one that runs other sources or other versions of
    what decides bytes, cannot read and write `store`, does not see `database`, or does not answer.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return
    connect()
    nodes = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and (node["NodeID"], store.url, database) not in _known
    }
    if not nodes:
        return
    seen = None if database is None else _seen(nearest_existing(database))
    with probe(store) as written:
        asked = {node_id: ask_node(node_id, _look, written, seen) for node_id in nodes}
        for node_id, reference in asked.items():
            where = f"the node {nodes[node_id]} of the cluster at {os.environ['RAY_ADDRESS']}"
            try:
                answer: _Answer = answer_of(reference, where, _ANSWER_SECONDS)
            except UserError:
                if _is_alive(node_id):
                    raise
                logger.warning("%s was lost while it was asked; it is left out", where)
                continue
            if problem := _problem(answer, store, database):
                raise UserError(f"{where} {problem}")
            _known.add((node_id, store.url, database))


def _is_alive(node_id: str) -> bool:
    """Whether the cluster lists a node as alive; it does for some seconds after its loss."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def _look(written: Probe, seen: _Seen | None) -> _Answer:
    try:
        sees_database = seen is None or _seen(seen[0]) == seen
    except OSError:
        sees_database = False
    return _Answer(computing_versions(), written.trouble(), sees_database)


def _problem(answer: _Answer, store: ArtifactStore, database: Path | None) -> str:
    """Why a node cannot take part, and the remedy; empty if it can."""
    here = computing_versions()
    different = [name for name, found in here.items() if answer.versions.get(name) != found]
    if different:
        theirs = ", ".join(f"{name} {answer.versions.get(name, 'none')}" for name in different)
        ours = ", ".join(f"{name} {here[name]}" for name in different)
        return (
            f"runs other versions than this process, {theirs} instead of {ours}; install the same "
            "on both, or take that node out of the cluster"
        )
    if answer.trouble:
        remedy = (
            "choose a runtime.store that all nodes share, such as s3://bucket/prefix or a mounted "
            "folder, or unset RAY_ADDRESS to compute here"
            if store.is_local
            else "give that node the credentials and the network access that this process has"
        )
        return f"cannot use the store {store.url}: it {answer.trouble}; {remedy}"
    if not answer.sees_database:
        return (
            f"cannot reach the tracker, to which a training run's first worker reports: {database} "
            "is a file of this machine; name an MLflow server that all nodes reach in "
            "runtime.tracking_uri (http://host:5000), or unset RAY_ADDRESS to compute here"
        )
    return ""
