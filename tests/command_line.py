"""`bertsmith` in a process of its own, as a person's shell starts it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

BERTSMITH = [sys.executable, "-c", "from flows.cli import main; main()"]
PATIENCE_SECONDS = 600
_OF_THE_SUITE = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "RAY_ADDRESS")


def started(*arguments: str, home: Path, **environment: str) -> "subprocess.Popen[str]":
    """The command in a process group of its own; what it writes to both streams is one text."""
    kept = {key: value for key, value in os.environ.items() if key not in _OF_THE_SUITE}
    return subprocess.Popen(
        [*BERTSMITH, *arguments],
        env={**kept, "BERTSMITH_HOME": str(home), **environment},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        process_group=0, preexec_fn=_as_in_a_terminal,
    )  # fmt: skip


def _as_in_a_terminal() -> None:
    """A test run in the background, or under nohup, ignores these, and its children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    """The output of a command that ends in time with this exit code, and no traceback."""
    try:
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == code, output
    assert "Traceback" not in output
    return output


def last_object(output: str) -> dict[str, Any]:
    """The JSON object that a process printed last; Ray prints lines of its own around it."""
    made: dict[str, Any] = json.loads(
        [line for line in output.splitlines() if line.startswith("{")][-1]
    )
    return made


def overrides(*settings: str) -> list[str]:
    """As options of a run."""
    return [part for setting in settings for part in ("--set", setting)]


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that nobody has waited for does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def training_workers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The processes that compute the steps."""
    workers = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(child.cmdline()):
                workers.append(child)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return workers
