"""A training run whose caller is interrupted and lives on, as in a notebook."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import last_object

pytestmark = pytest.mark.slow

NOTEBOOK = """
import json, os, signal, sys, threading, time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import ray
from pyarrow.fs import LocalFileSystem

from pipelines.store import ArtifactStore
from pipelines.stage import StageContext
from pipelines.train import launch as launching
from pipelines.train.checkpoint import CheckpointFolder
from pipelines.train.worker import TrainingJob
from pipelines.train.launch import launched
from pipelines.train.settings import BatchSplit
from pipelines.train.settings import TrainingSettings

launching.STOP_GRACE_SECONDS = 2.0  # this worker hears nobody
folder = Path(sys.argv[1])
ticks = folder / "ticks"


@dataclass(frozen=True, kw_only=True)
class EndlessJob(TrainingJob):
    name: ClassVar[str] = "endless"
    ticks: str

    def on_rank(self):
        while True:
            with open(self.ticks, "a") as file:
                file.write(".")
            time.sleep(0.05)


def interrupt():
    while not ticks.exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def count():
    return len(ticks.read_text())


signal.signal(signal.SIGINT, signal.default_int_handler)
job = EndlessJob(
    stage="endless", settings=TrainingSettings(), precision="float32", ticks=str(ticks),
    cut=BatchSplit(section="pretraining", global_batch_size=8, micro_batch_size=4),
)
threading.Thread(target=interrupt, daemon=True).start()
try:
    context = StageContext(store=ArtifactStore(folder / "store"))
    with launched(job, CheckpointFolder(str(folder / "work"), LocalFileSystem()), context, None):
        pass
except KeyboardInterrupt:
    at_return = count()
    time.sleep(3)
    told = {"at_return": at_return, "later": count(), "connected": ray.is_initialized()}
    print(json.dumps(told), flush=True)
"""


def test_no_step_is_taken_after_the_interrupted_call_has_returned(tmp_path: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False,
        env={key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    told = last_object(completed.stdout)
    assert told["at_return"] > 0
    assert told["later"] == told["at_return"]
    assert not told["connected"]
