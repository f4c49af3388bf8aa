"""What ends a training run, through the command line: one sentence, exit code 2, and no hang.

Each case is a row of the tables in docs/training.md.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.cli.app import DONE, MISTAKE
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

_LIMIT_SECONDS = 600
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
        kept_out = ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI", "RAY_ADDRESS")
        self._environment = {k: v for k, v in os.environ.items() if k not in kept_out}

    def start(
        self, until: str, store: Path, *settings: str, **environment: str
    ) -> "subprocess.Popen[str]":
        overrides = [part for setting in (*_SETTINGS, *settings) for part in ("--set", setting)]
        if until != "pretraining":
            overrides = []
        places = ("--home", str(self.folder / "home"), "--store", str(store))
        return subprocess.Popen(
            [
                sys.executable, "-c", "from flows.cli import main; main()", "run",
                str(self.recipe), "--until", until, *places, *overrides,
            ],
            env={**self._environment, **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip


@pytest.fixture(scope="module")
def machine(small_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(small_recipe, tmp_path_factory.mktemp("named failures"))
    ended(machine.start("examples", machine.folder / "data"), DONE)
    return machine


@pytest.fixture
def store(machine: Machine, tmp_path: Path) -> Path:
    """A store with the data stages' artifacts and nothing else."""
    return Path(shutil.copytree(machine.folder / "data", tmp_path / "store"))


def ended(process: "subprocess.Popen[str]", code: int) -> str:
    """The last line of a command that ends in time with this exit code."""
    try:
        _, said = process.communicate(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == code, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


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
    said = ended(machine.start("pretraining", store, *_DIVERGES), MISTAKE)
    assert "a step had to be skipped: the gradient of step " in said
    assert "largest gradients: " in said
    assert "lower the learning rate, " in said
    assert "pretraining has learning_rate, " in said


def test_a_disk_without_room_for_checkpoints_is_found_before_the_first_step(
    machine: Machine, small_disk: Path
) -> None:
    fill(small_disk.parent, 3 * 2**20)
    said = ended(machine.start("pretraining", small_disk), MISTAKE)
    assert "is too full for the checkpoints of pretraining" in said


def test_a_disk_that_fills_meanwhile_ends_it_at_once_and_a_second_run_goes_on(
    machine: Machine, small_disk: Path
) -> None:
    cadence = ("pretraining.num_steps=400", "pretraining.checkpoint_every_steps=40")
    process = machine.start("pretraining", small_disk, *cadence)
    wait_for(lambda: checkpoints(small_disk) or process.poll() is not None, "the first checkpoint")
    assert process.poll() is None, process.communicate()
    fill(small_disk.parent, 2**16)
    said = ended(process, MISTAKE)
    assert "the checkpoint of step 400 could not be stored in" in said
    step = max(checkpoints(small_disk))
    assert "No space left on device" in said
    assert said.endswith(f"run again: the training run resumes from step {step}")
    folders = list(small_disk.glob("encoder/.work-*/*/checkpoint_*"))
    assert len(folders) == len(checkpoints(small_disk))  # nothing half-written

    (small_disk.parent / "filler").unlink()
    again = machine.start("pretraining", small_disk, *cadence)
    _, told = again.communicate(timeout=_LIMIT_SECONDS)
    assert again.returncode == DONE, told
    assert f"resumed from step {step}" in told


def test_a_temporary_folder_without_room_is_found_before_the_first_step(
    machine: Machine, store: Path, small_disk: Path
) -> None:
    fill(small_disk.parent, 2 * 2**20)
    folders = {"TMPDIR": str(small_disk.parent), "RAY_TMPDIR": tempfile.gettempdir()}
    process = machine.start("pretraining", store, **folders)
    assert "choose another runtime.store or TMPDIR" in ended(process, MISTAKE)


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_named(
    machine: Machine, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    said = ended(machine.start("pretraining", store, TMPDIR=str(folder)), MISTAKE)
    assert "AF_UNIX path length" in said
    assert "its files need room and a short path in RAY_TMPDIR" in said


def test_workers_that_fit_on_no_node_are_refused(machine: Machine, store: Path) -> None:
    process = machine.start("pretraining", store, "runtime.cpus_per_worker=512")
    assert "512" in ended(process, MISTAKE)


def test_a_worker_that_dies_too_often_ends_it_with_what_to_do(
    machine: Machine, store: Path
) -> None:
    process = machine.start(
        "pretraining", store, "runtime.max_failures=0", "pretraining.num_steps=2000"
    )
    family = psutil.Process(process.pid)

    def workers() -> list[psutil.Process]:
        return [
            each
            for each in family.children(recursive=True)
            if "RayTrainWorker" in " ".join(each.cmdline())
        ]

    wait_for(lambda: checkpoints(store) or process.poll() is not None, "the first checkpoint")
    workers()[0].kill()
    said = ended(process, MISTAKE)
    assert "a worker of pretraining (rank" in said
    assert "runtime.max_failures=0 allows no more restarts" in said
