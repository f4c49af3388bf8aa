"""A run that is stopped saves where it stands, ends as cancelled, and goes on from there.

Stops reach the whole process group, as those of `timeout`, a closed terminal, a container and
Prefect's worker do.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_PATIENCE_SECONDS = 600
# No checkpoint is due before the end: what a stop leaves is its own.
_OVERRIDES = (
    "pretraining.num_steps=400", "pretraining.checkpoint_every_steps=400",
    "pretraining.evaluate_every_steps=400", "pretraining.log_every_steps=1",
)  # fmt: skip


def _as_in_a_terminal() -> None:
    """A test run in the background, or under nohup, ignores these, and its children inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start(recipe: Path, home: Path, ranks: int) -> "subprocess.Popen[str]":
    kept_out = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "RAY_ADDRESS")
    environment = {key: value for key, value in os.environ.items() if key not in kept_out}
    overrides = (*_OVERRIDES, f"runtime.training_workers={ranks}", "runtime.cpus_per_worker=1")
    return subprocess.Popen(
        [
            sys.executable, "-c", "from flows.cli import main; main()", "run", str(recipe),
            "--until", "pretraining",
            *(part for override in overrides for part in ("--set", override)),
        ],
        env=environment | {"BERTSMITH_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
        preexec_fn=_as_in_a_terminal,
    )  # fmt: skip


def finished(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, said
    return said


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def steps_told(home: Path) -> int:
    """How many points of the curve the tracker holds."""
    if not (home / "mlflow.db").exists():
        return 0
    try:
        query = "select count(*) from metrics where key = 'train/loss'"
        return int(rows(home / "mlflow.db", query)[0][0])
    except sqlite3.OperationalError:  # its tables are being made
        return 0


def statuses(home: Path) -> dict[str, str]:
    """Of the tracker's runs, by stage; the whole run has one of its own."""
    found = rows(home / "mlflow.db", "select name, status from runs")
    return {name.partition("-")[0]: status for name, status in found}


def manifest(home: Path) -> dict[str, Any]:
    (path,) = (home / "store" / "encoder").glob("*/manifest.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def stop(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Signal the process and then its group, as `timeout` does."""
    process.send_signal(number)
    os.killpg(process.pid, number)


@pytest.mark.parametrize(
    ("number", "ranks"), [(signal.SIGTERM, 2), (signal.SIGINT, 2), (signal.SIGHUP, 1)]
)
def test_a_stopped_run_is_cancelled_and_goes_on_where_it_stood_to_the_same_bits(
    small_recipe: Path, tmp_path: Path, number: signal.Signals, ranks: int
) -> None:
    home = tmp_path / "home"
    process = start(small_recipe, home, ranks)
    wait_for(lambda: steps_told(home) or process.poll() is not None, "the first steps")
    family = psutil.Process(process.pid).children(recursive=True)
    stop(process, number)
    said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert "run the same command to resume" in said.splitlines()[-1]
    wait_for(lambda: not any(lives(member) for member in family), "the end of what it started")

    (left,) = (home / "store" / "encoder").glob(".work-*/*/checkpoint_*/checksums.json")
    saved = json.loads(left.read_text())
    assert 0 < saved["step"] < 400
    (state,) = rows(home / "prefect" / "prefect.db", "select state_type from flow_run")
    assert state == ("CANCELLED",)
    told = statuses(home)
    assert set(told.values()) == {"KILLED"}
    assert "pretraining" in told

    assert f"resumed from step {saved['step']}" in finished(start(small_recipe, home, ranks))
    resumed = manifest(home)
    assert resumed["statistics"]["resumed_from"] == [saved["step"]]
    assert set(statuses(home).values()) == {"FINISHED"}

    finished(start(small_recipe, tmp_path / "undisturbed", ranks))
    undisturbed = manifest(tmp_path / "undisturbed")
    for name in ("model.safetensors", "history.json"):
        assert resumed["files"][name] == undisturbed["files"][name], name
