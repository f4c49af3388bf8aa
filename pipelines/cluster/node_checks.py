"""Whether the nodes of a cluster can take part: they run this code, see this store and tracker.

This is checked once for each node, in seconds, before anything is built there; never for a local
Ray.
"""

import logging
import os
import platform
import uuid
from pathlib import Path
from typing import NamedTuple

from pipelines.cluster.connection import connect
from pipelines.cluster.mapping import answer_of, ask_node
from pipelines.config.errors import UserError, first_line
from pipelines.config.versions import computing_versions
from pipelines.store import ArtifactStore
from pipelines.store.access import nearest_existing, store_errors, store_errors_explained

import ray  # isort: skip  (after pipelines.cluster.connection, which sets its environment)

logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 120.0  # of all nodes; what is shipped to them has to arrive first
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PREFIX = ".probe-"  # no kind of artifact has such a name

# Nodes that answered well, each with the store and the database that it saw.
_known: set[tuple[str, str, Path | None]] = set()


class _File(NamedTuple):
    """What identifies a file or folder on any machine."""

    machine: str
    device: int
    inode: int


class _Answer(NamedTuple):
    versions: dict[str, str]
    trouble: str  # with the store, in a few words; empty where there is none
    file: "_File | None"  # what stands where the database is, or would be made


def check_nodes(store: ArtifactStore, database: Path | None = None) -> None:
    """Check that every node of the cluster that RAY_ADDRESS names can work with this process.

    `database` is the tracker's, if it is a file that the first worker of a training run would
    open. Raises UserError, naming the node, for one that runs other sources or other versions of
    what decides bytes, cannot read and write `store`, does not see `database`, or does not answer.
    """
    if not os.environ.get("RAY_ADDRESS"):
        return
    connect()
    unknown = {
        node["NodeID"]: node["NodeManagerAddress"]
        for node in ray.nodes()
        if node["Alive"] and (node["NodeID"], store.url, database) not in _known
    }
    if not unknown:
        return
    place = None if database is None else nearest_existing(database)
    name = f"{_PREFIX}{uuid.uuid4().hex}"
    probe = f"{store.root}/{name}"
    with store_errors_explained(store.url):
        store.filesystem.makedirs(store.root, exist_ok=True)
        store.filesystem.pipe_file(probe, name.encode())
    try:
        asked = {node_id: ask_node(node_id, _look, store, name, place) for node_id in unknown}
        for node_id, reference in asked.items():
            where = f"the node {unknown[node_id]} of the cluster at {os.environ['RAY_ADDRESS']}"
            try:
                answer: _Answer = answer_of(reference, where, _ANSWER_SECONDS)
            except UserError:
                if _is_alive(node_id):
                    raise
                logger.warning("%s was lost while it was asked; it is left out", where)
                continue
            if problem := _problem(answer, store, database, place):
                raise UserError(f"{where} {problem}")
            _known.add((node_id, store.url, database))
    finally:
        with store_errors_explained(store.url):
            store.filesystem.rm_file(probe)


def _is_alive(node_id: str) -> bool:
    """Whether the cluster lists a node as alive; it does for some seconds after its loss."""
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())


def _look(store: ArtifactStore, name: str, place: Path | None) -> _Answer:
    """On the node: reads the probe of that name, and writes and removes a file of its own."""
    path, trouble = f"{store.root}/{name}", ""
    own = f"{path}-{uuid.uuid4().hex}"
    try:
        if store.filesystem.cat_file(path) != name.encode():
            trouble = "finds another file there than was written"
        store.filesystem.pipe_file(own, b"")
        store.filesystem.rm_file(own)
    except FileNotFoundError:
        trouble = "does not see it"
    except store_errors() as error:
        trouble = f"cannot read and write it ({first_line(error)})"
    return _Answer(computing_versions(), trouble, _file_at(place))


def _file_at(place: Path | None) -> _File | None:
    if place is None or not place.exists():
        return None
    machine = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else platform.node()
    return _File(machine, place.stat().st_dev, place.stat().st_ino)


def _problem(
    answer: _Answer, store: ArtifactStore, database: Path | None, place: Path | None
) -> str:
    """Why a node cannot take part, and the remedy; empty if it can."""
    here = computing_versions()
    different = [name for name, version in here.items() if answer.versions.get(name) != version]
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
    if answer.file != _file_at(place):
        return (
            f"cannot reach the tracker, to which a training run's first worker reports: {database} "
            "is a file of this machine; name an MLflow server that all nodes reach in "
            "runtime.tracking_uri (http://host:5000), or unset RAY_ADDRESS to compute here"
        )
    return ""
