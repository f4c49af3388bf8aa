"""Checks of the machine and the installation, each with advice if it fails."""

import platform
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement

from flows.reporting.progress_line import memory
from flows.services.credentials import NAMES, read_record
from flows.services.health import is_free
from pipelines.artifacts.access import nearest_existing
from pipelines.config.errors import UserError

State = Literal["ok", "warn", "fail"]
_GIBIBYTE = 2**30
_MEMORY_BYTES = 4 * _GIBIBYTE  # what the demo takes at most
_DISK_BYTES = 2 * _GIBIBYTE
_BF16_FLAGS = ("avx512_bf16", "amx_bf16")


@dataclass(frozen=True, slots=True)
class Check:
    """A finding, and what to do about it."""

    name: str
    state: State
    finding: str
    advice: str = ""


def check_python() -> Check:
    """Which Python this is; the installer refuses one that is too old."""
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def check_packages() -> Check:
    """Every required package is installed in a version that works."""
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
    """The home can be written or created, and has free space."""
    try:
        try_to_write(home)
    except UserError as error:
        return Check("home", "fail", f"{error}", "choose another: --home or $BERTSMITH_HOME")
    free = shutil.disk_usage(nearest_existing(home)).free
    finding = f"{home}{'' if home.is_dir() else ', not made yet'}, {memory(free)} free"
    if free < _DISK_BYTES:
        return Check("home", "warn", finding, f"the demo takes up to {memory(_DISK_BYTES)}")
    return Check("home", "ok", finding)


def check_servers(home: Path, prefect_port: int, mlflow_port: int) -> Check:
    """`bertsmith up` runs, or its ports are free."""
    services = read_record(home)
    if services is not None:
        dead = [name for name in NAMES if not services.is_running(name)]
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


def try_to_write(folder: Path) -> None:
    """Raise UserError if a folder can be neither written nor created."""
    try:
        with tempfile.TemporaryFile(dir=nearest_existing(folder)) as probe:
            probe.write(b"x")
    except OSError as error:
        fault = "written" if folder.is_dir() else "made"
        raise UserError(f"{folder} cannot be {fault}: {error.strerror}") from error


def _complaint(requirement: Requirement) -> str | None:
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"{requirement.name} is missing"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} is {found}, required is {requirement.specifier}"


def _processor_flags() -> set[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return set()
    lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    return set(next(lines, "").split())
