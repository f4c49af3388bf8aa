"""`kill -9` in the middle of a run: of a training worker, and of everything."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.command_line import ended, lives, overrides, started, training_workers
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_LONGER = ("pretraining.num_steps=200", "pretraining.checkpoint_every_steps=25")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the data stages are built once."""
    return tmp_path_factory.mktemp("kills") / "home"


@pytest.fixture
def start(small_recipe: Path, home: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts a pretraining; what it still runs is ended afterwards, and what it made removed."""
    running: list[subprocess.Popen[str]] = []
    options = ("--until", "pretraining", *overrides(*_LONGER))

    def start() -> subprocess.Popen[str]:
        running.append(started("run", str(small_recipe), *options, home=home))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()
    shutil.rmtree(home / "store" / "encoder", ignore_errors=True)


def has_checkpoints(home: Path) -> bool:
    """Whether a training run has two checkpoints: Ray knows of the first for certain by then."""
    return len(list((home / "store" / "encoder").glob(".work-*/*/checkpoint_*"))) >= 2


def steps_resumed_from(home: Path) -> list[int]:
    """As the finished encoder's manifest tells it."""
    (manifest,) = (home / "store" / "encoder").glob("*/manifest.json")
    resumed: list[int] = json.loads(manifest.read_text())["statistics"]["resumed_from"]
    return resumed


def test_a_killed_worker_is_replaced_and_the_run_says_from_which_step_it_went_on(
    start: Callable[[], subprocess.Popen[str]], home: Path
) -> None:
    process = start()
    wait_for(lambda: has_checkpoints(home), "two checkpoints")
    wait_for(lambda: training_workers(process), "a worker")[0].kill()
    output = ended(process)
    (step,) = steps_resumed_from(home)
    assert step >= 25
    assert re.search(rf"## Notes\n\n(?:- .*\n)*?- pretraining resumed from step {step}\b", output)


def test_a_killed_run_goes_on_from_its_last_checkpoint_when_it_is_started_again(
    start: Callable[[], subprocess.Popen[str]], home: Path
) -> None:
    process = start()
    wait_for(lambda: has_checkpoints(home), "two checkpoints")
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(lives(member) for member in family), "the end of what it started")

    output = ended(start())
    assert re.search(r"examples +\|? *reused", output)
    (step,) = steps_resumed_from(home)
    assert step >= 25
    assert f"resumed from step {step}" in output
