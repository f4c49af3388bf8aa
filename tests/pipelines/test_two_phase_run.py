"""A training run in two lengths is one run: one curve, one optimizer, exact at the boundary."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from bert_core.batch import Batch
from bert_core.training.state import WEIGHTS_FILE, load_model
from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.manifest import sha256_of_file
from pipelines.config.runtime import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of
from pipelines.stages.pretraining.work import pretraining_work
from pipelines.training.checkpoint_files import MODEL_FOLDER, CheckpointFolder
from pipelines.training.launch import Launch, launch
from pipelines.training.worker import run

pytestmark = pytest.mark.slow

SETTINGS = PretrainingSettings(
    size="tiny", num_steps=30, short_steps_fraction=0.6, global_batch_size=8,
    micro_batch_size=4, short_global_batch_size=20, short_micro_batch_size=8,
    mask_fraction=0.3, final_mask_fraction=0.15, evaluate_every_steps=15, evaluation_examples=32,
    final_evaluation_examples=32, checkpoint_every_steps=10, log_every_steps=1,
)  # fmt: skip
BOUNDARY, KILLED_AT = 18, 19  # the checkpoint before is that of step 10, in the short phase


def worker(values: dict[str, Any]) -> dict[str, Any]:
    """The training run's own worker, which dies once at `KILLED_AT`."""
    with pretraining_work(SETTINGS, values) as work:

        def micro_batches(step: int) -> Iterator[tuple[int, Batch]]:
            mark = values["dies"] and Path(values["dies"])
            if mark and step == KILLED_AT and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return iter(work.micro_batches(step))

        return run(replace(work, micro_batches=micro_batches), values)


def trained(examples, vocabulary, folder: Path, dies: str) -> tuple[str, dict[str, Any], Any]:
    folder.mkdir()
    values = {
        "examples": examples, "vocabulary": vocabulary,
        "precision": "float32", "run_id": None, "tracking_uri": None, "dies": dies,
    }  # fmt: skip

    def finish(checkpoint: Path, told: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
        weights = checkpoint / MODEL_FOLDER
        return sha256_of_file(weights / WEIGHTS_FILE), told, load_model(weights).config

    job = Launch(
        worker=worker,
        values=values,
        name="phases",
        checkpoints=CheckpointFolder(str(folder / "work"), LocalFileSystem()),
        cut=phases_of(SETTINGS)[1].cut,
    )
    ranks = RuntimeSettings(training_workers=1, cpus_per_worker=1)
    return launch(job, StageContext(store=ArtifactStore(folder / "store"), ranks=ranks), finish)


def learned(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The curve without what it says of time."""
    names = ("step", "train/loss", "train/learning_rate", "eval/mlm_loss", "eval/mlm_accuracy")
    return [{name: point[name] for name in names if name in point} for point in history]


def test_a_kill_beyond_the_boundary_and_a_checkpoint_before_it_change_no_bit(
    small_corpus, small_vocabulary, small_context, local_ray, tmp_path: Path
):
    settings = ExampleSettings(max_tokens=64, short_tokens=24, shard_tokens=2000)
    examples = build_examples(settings, small_corpus, small_vocabulary, small_context)
    weights, told, config = trained(examples, small_vocabulary, tmp_path / "plain", "")
    killed = trained(examples, small_vocabulary, tmp_path / "killed", str(tmp_path / "mark"))
    assert killed[1]["resumed_from"] == [10]
    assert killed[0] == weights
    assert config.max_position_embeddings == 64  # from the first short step on
    steps = [point["step"] for point in told["history"] if "train/loss" in point]
    assert steps == list(range(1, 31))
    assert learned(killed[1]["history"]) == learned(told["history"])
    assert killed[1]["num_tokens"] == told["num_tokens"]
