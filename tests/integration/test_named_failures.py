"""What ends a training run, through the command line: one sentence, exit code 2, and no hang.

Each case is a row of the tables in docs/training.md.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.app import MISTAKE
from tests.command_line import ended, overrides, started, training_workers
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_SETTINGS = ("pretraining.num_steps=120", "runtime.training_workers=2", "runtime.cpus_per_worker=1")
_DIVERGES = (
    "pretraining.optimizer=adamw", "pretraining.learning_rate=1", "pretraining.warmup_fraction=0",
    "pretraining.schedule=constant", "pretraining.max_gradient_norm=0.01",
    "pretraining.spike_factor=1.01", "pretraining.max_skipped_steps=1",
)  # fmt: skip


class Machine:
    """Runs `bertsmith` with a home of its own, whose data stages are made once."""

    def __init__(self, recipe: Path, folder: Path) -> None:
        self.recipe, self.folder = recipe, folder

    def start(
        self, until: str, store: Path, *settings: str, **environment: str
    ) -> "subprocess.Popen[str]":
        of_training = (*_SETTINGS, *settings) if until == "pretraining" else ()
        options = ("--until", until, "--store", str(store), *overrides(*of_training))
        home = self.folder / "home"
        return started("run", str(self.recipe), *options, home=home, **environment)


@pytest.fixture(scope="module")
def machine(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(small_recipe, tmp_path_factory.mktemp("named failures"))
    ended(machine.start("examples", machine.folder / "data"))
    return machine


@pytest.fixture
def store(machine: Machine, tmp_path: Path) -> Path:
    """A store with the data stages' artifacts and nothing else."""
    return Path(shutil.copytree(machine.folder / "data", tmp_path / "store"))


def sentence(process: "subprocess.Popen[str]") -> str:
    """The last line of a command that ends in time as those do that a person's mistake ends."""
    return ended(process, MISTAKE).splitlines()[-1]


@pytest.fixture
def small_disk(machine: Machine, tmp_path: Path) -> Iterator[Path]:
    """A file system of 60 MiB that holds the data stages' artifacts."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield Path(shutil.copytree(machine.folder / "data", disk / "store"))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def checkpoints(store: Path) -> list[int]:
    """The steps of those that are whole."""
    files = store.glob("encoder/.work-*/*/checkpoint_*/checksums.json")
    return [json.loads(file.read_text())["step"] for file in files]


def fill(disk: Path, but_bytes: int) -> None:
    """Leave so many bytes free."""
    with (disk / "filler").open("wb") as file:
        file.truncate(0)
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - but_bytes)


def test_numbers_that_never_heal_end_with_a_diagnosis(machine: Machine, store: Path) -> None:
    message = sentence(machine.start("pretraining", store, *_DIVERGES))
    assert "a step had to be skipped: the gradient of step " in message
    assert "largest gradients: " in message
    assert "lower the learning rate, " in message
    assert "pretraining has learning_rate, " in message


def test_a_disk_that_fills_meanwhile_ends_it_at_once_and_a_second_run_goes_on(
    machine: Machine, small_disk: Path
) -> None:
    cadence = ("pretraining.num_steps=200", "pretraining.checkpoint_every_steps=40")
    process = machine.start("pretraining", small_disk, *cadence)
    wait_for(lambda: checkpoints(small_disk) or process.poll() is not None, "the first checkpoint")
    assert process.poll() is None, process.communicate()
    fill(small_disk.parent, 2**16)
    message = sentence(process)
    assert "the checkpoint of step 200 could not be stored in" in message
    step = max(checkpoints(small_disk))
    assert "No space left on device" in message
    assert message.endswith(f"run again: the training run resumes from step {step}")
    folders = list(small_disk.glob("encoder/.work-*/*/checkpoint_*"))
    assert len(folders) == len(checkpoints(small_disk))  # nothing half-written

    (small_disk.parent / "filler").unlink()
    again = machine.start("pretraining", small_disk, *cadence)
    assert f"resumed from step {step}" in ended(again)


def test_a_temporary_folder_without_room_is_found_before_the_first_step(
    machine: Machine, store: Path, small_disk: Path
) -> None:
    fill(small_disk.parent, 2 * 2**20)
    folders = {"TMPDIR": str(small_disk.parent), "RAY_TMPDIR": tempfile.gettempdir()}
    process = machine.start("pretraining", store, **folders)
    assert "choose another runtime.store or TMPDIR" in sentence(process)


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_named(
    machine: Machine, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    message = sentence(machine.start("pretraining", store, TMPDIR=str(folder)))
    assert "AF_UNIX path length" in message
    assert "its files need room and a short path in RAY_TMPDIR" in message


def test_a_worker_that_dies_too_often_ends_it_with_what_to_do(
    machine: Machine, store: Path
) -> None:
    process = machine.start("pretraining", store, "runtime.max_failures=0")
    wait_for(lambda: checkpoints(store) or process.poll() is not None, "the first checkpoint")
    training_workers(process)[0].kill()
    message = sentence(process)
    assert "a worker of pretraining (rank" in message
    assert "runtime.max_failures=0 allows no more restarts" in message
