"""`kill -9` in the middle of a run: of a training worker, and of everything."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_LONGER = ("pretraining.num_steps=1000", "pretraining.checkpoint_every_steps=50")
_PATIENCE_SECONDS = 600


@pytest.fixture
def started(small_recipe: Path, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a pretraining in a home of its own; what it still runs is ended afterwards."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI")
    } | {"BERTSMITH_HOME": str(tmp_path / "home")}
    command = [
        sys.executable,
        "-c",
        "from flows.cli import main; main()",
        "run",
        "--until",
        "pretraining",
    ]
    overrides = [part for override in _LONGER for part in ("--set", override)]
    running: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, str(small_recipe), *overrides],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # As from a terminal: what a shell starts in the background ignores Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()


def has_checkpoints(home: Path) -> bool:
    """Whether a training run has two checkpoints: Ray knows of the first for certain by then."""
    return len(list((home / "store" / "encoder").glob(".work-*/*/checkpoint_*"))) >= 2


def training_worker(process: subprocess.Popen[str]) -> psutil.Process | None:
    """The process that computes the steps."""
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if "RayTrainWorker" in " ".join(child.cmdline()):
                return child
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def steps_resumed_from(home: Path) -> list[int]:
    """As the finished encoder's manifest tells it."""
    (manifest,) = (home / "store" / "encoder").glob("*/manifest.json")
    resumed: list[int] = json.loads(manifest.read_text())["statistics"]["resumed_from"]
    return resumed


def test_a_killed_worker_is_replaced_and_the_run_says_from_which_step_it_went_on(
    started: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started()
    wait_for(lambda: has_checkpoints(tmp_path / "home"), "two checkpoints")
    worker = wait_for(lambda: training_worker(process), "a training worker")
    worker.kill()
    said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 0, said
    (step,) = steps_resumed_from(tmp_path / "home")
    assert step >= 50
    assert re.search(rf"## Notes\n\n(?:- .*\n)*?- pretraining resumed from step {step}\b", said)


def test_a_killed_run_goes_on_from_its_last_checkpoint_when_it_is_started_again(
    started: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started()
    wait_for(lambda: has_checkpoints(tmp_path / "home"), "two checkpoints")
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(_lives(member) for member in family), "the end of what it started")

    again = started()
    said, _ = again.communicate(timeout=_PATIENCE_SECONDS)
    assert again.returncode == 0, said
    assert re.search(r"examples +\|? *reused", said)
    (step,) = steps_resumed_from(tmp_path / "home")
    assert step >= 50
    assert f"resumed from step {step}" in said


def test_an_interrupted_run_stops_with_a_sentence_that_says_how_to_go_on(
    started: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started()
    wait_for(lambda: has_checkpoints(tmp_path / "home"), "two checkpoints")
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
    assert process.returncode == 130, said
    assert "run the same command to resume" in said.splitlines()[-1]
    assert "Traceback" not in said
    wait_for(lambda: not any(_lives(member) for member in family), "the end of what it started")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
