"""Checks of the machine and the installation, each with what to do where it fails."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement

from flows.reporting.quantities import memory
from flows.services.processes.ports import is_free
from flows.services.record import NAMES, read_record
from flows.services.tried_places import nearest, place_to_try, try_to_write
from pipelines.core.errors import UserError
from pipelines.core.redaction import redacted

State = Literal["ok", "warn", "fail"]
_GIBIBYTE = 2**30
_MEMORY_BYTES = 4 * _GIBIBYTE  # what the demo takes at most
_DISK_BYTES = 2 * _GIBIBYTE
_RAY_SECONDS = 180
_RAY_PROBE = """
import os, sys
from flows.services.tried_places import place_to_try
from pipelines.artifacts import ArtifactStore
from pipelines.core.cluster.connection import connect, disconnect, local_cpus, nodes
from pipelines.core.cluster.strangers import refuse_strangers
from pipelines.core.errors import UserError
try:
    connect()
    refuse_strangers(ArtifactStore(place_to_try(sys.argv[1])))
except UserError as error:
    sys.exit(str(error))
found = nodes()
disconnect()
if os.environ.get("RAY_ADDRESS"):
    cpus, gpus = (sum(node.get(kind, 0) for node in found) for kind in ("CPU", "GPU"))
    print(f"{len(found)} nodes with the versions of this process, which see the store: "
          f"{cpus:.0f} CPUs, {gpus:.0f} GPUs")
else:
    print(local_cpus(), "CPUs here")
"""
_RAY_ADVICE = "unset RAY_ADDRESS, or look into /tmp/ray/session_latest/logs"
_BF16_FLAGS = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it."""

    name: str
    state: State
    finding: str
    advice: str = ""


def check_python() -> Check:
    """Which Python this is; the installer refuses one that is too old."""
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def check_packages() -> Check:
    """Every required package is there in a version that works."""
    wrong = [
        sentence
        for line in requires("bertsmith") or []
        if (sentence := _complaint(Requirement(line))) is not None
    ]
    if wrong:
        return Check(
            "packages", "fail", "; ".join(wrong),
            "install again: pip install -c constraints.txt bertsmith",
        )  # fmt: skip
    return Check("packages", "ok", "all in versions that work together")


def check_processor() -> Check:
    """Cores, and whether they compute in bf16."""
    cores = len(psutil.Process().cpu_affinity()) if psutil.LINUX else psutil.cpu_count() or 1
    flags = _processor_flags()
    if any(flag in flags for flag in _BF16_FLAGS):
        return Check("processor", "ok", f"{cores} cores that compute in bf16")
    return Check(
        "processor", "warn", f"{cores} cores without bf16 instructions",
        "nothing: training runs in float32, several times slower",
    )  # fmt: skip


def check_memory() -> Check:
    """Enough free memory for the demo."""
    free = psutil.virtual_memory().available
    finding = f"{memory(free)} free of {memory(psutil.virtual_memory().total)}"
    if free < _MEMORY_BYTES:
        return Check("memory", "warn", finding, f"the demo takes up to {memory(_MEMORY_BYTES)}")
    return Check("memory", "ok", finding)


def check_disk(home: Path) -> Check:
    """The home can be written, or made, and has room."""
    try:
        try_to_write(home)
    except UserError as error:
        return Check("home", "fail", f"{error}", "choose another: --home or $BERTSMITH_HOME")
    free = shutil.disk_usage(nearest(home)).free
    finding = f"{home}{'' if home.is_dir() else ', not made yet'}, {memory(free)} free"
    if free < _DISK_BYTES:
        return Check("home", "warn", finding, f"the demo takes up to {memory(_DISK_BYTES)}")
    return Check("home", "ok", finding)


def check_servers(home: Path, prefect_port: int, mlflow_port: int) -> Check:
    """`bertsmith up` could listen, or runs."""
    services = read_record(home)
    if services is not None:
        dead = [name for name in NAMES if services.running(name) is None]
        if not dead:
            return Check("servers", "ok", f"running: {services.prefect_url}, {services.mlflow_url}")
        return Check(
            "servers", "warn", f"started, but no longer running: {', '.join(dead)}",
            "start them again: bertsmith up",
        )  # fmt: skip
    taken = [port for port in (prefect_port, mlflow_port) if not is_free(port)]
    if taken:
        return Check(
            "servers", "warn", f"not running, and something else listens on {taken}",
            "start them with `bertsmith up --prefect-port … --mlflow-port …`",
        )  # fmt: skip
    return Check("servers", "ok", f"not running; ports {prefect_port} and {mlflow_port} are free")


def check_ray(store_url: str) -> Check:
    """Ray starts, or every node of the cluster that RAY_ADDRESS names can take part.

    It is tried in a process of its own: its versions, and whether it sees the store.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        completed = subprocess.run(
            [sys.executable, "-c", _RAY_PROBE, store_url],
            capture_output=True,
            text=True,
            timeout=_RAY_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("Ray", "fail", f"did not answer within {_RAY_SECONDS} s", _RAY_ADVICE)
    if completed.returncode != 0:
        said = completed.stderr.strip().splitlines() or ["it ended without a word"]
        return Check("Ray", "fail", said[-1], _RAY_ADVICE)
    found = completed.stdout.strip()
    if not address and " " in sys.prefix:  # ray_client_server cuts the interpreter's path there
        return Check(
            "Ray",
            "warn",
            f"starts, {found}; `ray start --head` would end at once: a space in {sys.prefix}",
            "to start a cluster here, install into a folder whose path has no space",
        )
    return Check("Ray", "ok", f"joined {address}, {found}" if address else f"starts, {found}")


def check_store(url: str) -> Check:
    """The artifact store can be written and read, and creates a thing only where none is."""
    from pipelines.artifacts import ArtifactStore
    from pipelines.artifacts.access import explained
    from pipelines.artifacts.attempts.commit import create_only

    shown = redacted(url)
    try:
        store = ArtifactStore(place_to_try(url), is_patient=False)
        probe = f"{store.root}/.doctor-{os.getpid()}"
        with explained(url):
            first = create_only(store.filesystem, probe, b"probe")
            second = create_only(store.filesystem, probe, b"another")
            is_kept = first and not second and store.filesystem.cat_file(probe) == b"probe"
            store.filesystem.rm(probe)
    except (OSError, ValueError, ImportError) as error:
        said = redacted(f"{shown}: {_first_line(error)}")
        return Check("store", "fail", said, "choose one with --store")
    if not is_kept:
        return Check(
            "store", "warn", f"{shown} creates a thing where one is (no If-None-Match)",
            "run one builder of an artifact at a time, or choose a store with conditional writes",
        )  # fmt: skip
    return Check("store", "ok", shown)


def check_tracker() -> Check:
    """The MLflow tracker and its registry answer; a home's own may not be made yet."""
    from pipelines.core.place import DATABASE_NAME, PlaceSettings

    place = PlaceSettings()
    home = place.home_folder()
    try:
        if not place.has_registry():
            try_to_write(home)
            return Check("tracker", "ok", f"sqlite:///{home / DATABASE_NAME}, made by a run")
        tracker = place.tracker({})
        tracker.experiment_id()
    except UserError as error:
        advice = "start it, or unset MLFLOW_TRACKING_URI"
        return Check("tracker", "fail", _first_line(error), advice)
    there, here = tracker.server_version(), version("mlflow")
    if there and there.split(".")[:2] != here.split(".")[:2]:
        advice = "bring the older of both up to date: the server first"
        return Check(
            "tracker", "warn", f"{tracker.shown_uri} is {there}, here it is {here}", advice
        )
    return Check("tracker", "ok", tracker.shown_uri)


def checks(
    home: Path, store_url: str, prefect_port: int, mlflow_port: int
) -> list[Callable[[], Check]]:
    """All checks, quick ones first."""
    return [
        check_python,
        check_packages,
        check_processor,
        check_memory,
        lambda: check_disk(home),
        lambda: check_servers(home, prefect_port, mlflow_port),
        lambda: check_store(store_url),
        check_tracker,
        lambda: check_ray(store_url),
    ]


def _complaint(requirement: Requirement) -> str | None:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} must be {requirement.specifier}, found {found}"


def _processor_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return set()
    lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    return set(next(lines, "").split())


def _first_line(error: Exception) -> str:
    return redacted((str(error).splitlines() or [type(error).__name__])[0])
