"""A run that is stopped saves where it stands, ends as cancelled, and goes on from there.

Stops reach the whole process group, as those of `timeout`, a closed terminal, a container and
Prefect's worker do.
"""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.cli.app import INTERRUPTED
from tests.command_line import ended, lives, overrides, started
from tests.flows.person import newest_flow_run, num_points, rows
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

# No checkpoint is due before the end: what a stop leaves is its own.
_OVERRIDES = (
    "pretraining.num_steps=200", "pretraining.checkpoint_every_steps=200",
    "pretraining.evaluate_every_steps=200", "pretraining.log_every_steps=1",
    "runtime.training_workers=2", "runtime.cpus_per_worker=1",
)  # fmt: skip


def start(recipe: Path, home: Path) -> "subprocess.Popen[str]":
    run = ("run", str(recipe), "--until", "pretraining")
    return started(*run, *overrides(*_OVERRIDES), home=home)


def statuses(home: Path, since: int) -> dict[str, str]:
    """Of the runs that the tracker holds since then (ms), by stage; the whole run has its own."""
    query = f"select name, status from runs where start_time >= {since}"
    return {name.partition("-")[0]: status for name, status in rows(home / "mlflow.db", query)}


def take_encoder(home: Path) -> dict[str, Any]:
    """The manifest of the one encoder, which then leaves the store."""
    (path,) = (home / "store" / "encoder").glob("*/manifest.json")
    manifest: dict[str, Any] = json.loads(path.read_text())
    shutil.rmtree(home / "store" / "encoder")
    return manifest


def stop(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Signal the process and then its group, as `timeout` does."""
    process.send_signal(number)
    os.killpg(process.pid, number)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store, a tracker and a Prefect API of its own."""
    return tmp_path_factory.mktemp("polite stop") / "home"


@pytest.fixture(scope="module")
def undisturbed(small_recipe: Path, home: Path) -> dict[str, Any]:
    """The manifest of the encoder of a run that nobody stopped."""
    ended(start(small_recipe, home))
    return take_encoder(home)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_is_cancelled_and_goes_on_where_it_stood_to_the_same_bits(
    small_recipe: Path, home: Path, undisturbed: dict[str, Any], number: signal.Signals
) -> None:
    points, since = num_points(home), int(time.time() * 1000)
    process = start(small_recipe, home)
    wait_for(lambda: num_points(home) > points or process.poll() is not None, "the first steps")
    family = psutil.Process(process.pid).children(recursive=True)
    stop(process, number)
    assert "run the same command to resume" in ended(process, INTERRUPTED).splitlines()[-1]
    wait_for(lambda: not any(lives(member) for member in family), "the end of what it started")

    (checkpoint,) = (home / "store" / "encoder").glob(".work-*/*/checkpoint_*/checksums.json")
    saved = json.loads(checkpoint.read_text())["step"]
    assert 0 < saved < 200
    assert newest_flow_run(home)[1] == "Cancelled"
    states = statuses(home, since)
    assert set(states.values()) == {"KILLED"}
    assert "pretraining" in states

    output = ended(start(small_recipe, home))
    assert f"resumed from step {saved}" in output
    assert f"registry: {home / 'mlflow.db'}" in output
    assert set(statuses(home, since).values()) == {"FINISHED"}
    resumed = take_encoder(home)
    assert resumed["statistics"]["resumed_from"] == [saved]
    for name in ("model.safetensors", "history.json"):
        assert resumed["files"][name] == undisturbed["files"][name], name
