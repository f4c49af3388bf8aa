"""A training run whose caller is interrupted and lives on, as in a notebook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

NOTEBOOK = """
import json, os, signal, sys, threading, time
from pathlib import Path

import ray
from pyarrow.fs import LocalFileSystem

from pipelines.artifacts import ArtifactStore
from pipelines.training.checkpoint_files import CheckpointFolder
from pipelines.stage import StageContext
from pipelines.training import launch as launching
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import BatchSplit

launching.PATIENCE_SECONDS = 2.0  # this worker hears nobody
folder = Path(sys.argv[1])
ticks = folder / "ticks"


def worker(values):
    while True:
        with open(values["ticks"], "a") as file:
            file.write(".")
        time.sleep(0.05)


def interrupt():
    while not ticks.exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def count():
    return len(ticks.read_text())


signal.signal(signal.SIGINT, signal.default_int_handler)
job = Launch(
    worker=worker, values={"ticks": str(ticks)}, name="endless",
    checkpoints=CheckpointFolder(str(folder / "work"), LocalFileSystem()),
    cut=BatchSplit(section="pretraining", global_batch_size=8, micro_batch_size=4),
)
threading.Thread(target=interrupt, daemon=True).start()
try:
    launch(job, StageContext(store=ArtifactStore(folder / "store")), lambda checkpoint, told: told)
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
    told = json.loads(completed.stdout.splitlines()[-1])
    assert told["at_return"] > 0
    assert told["later"] == told["at_return"]
    assert not told["connected"]
