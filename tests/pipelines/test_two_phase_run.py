"""A training run in two lengths is one run: one curve, one optimizer, exact at the boundary."""

import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bert_core.batch import Batch
from bert_core.training.state import WEIGHTS_FILE, load_model
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import PretrainingSettings, phases_of
from pipelines.stages.pretraining.stage import Pretraining, PretrainingJob
from pipelines.store.artifact import sha256_of_file
from pipelines.train.checkpoint import MODEL_FOLDER
from tests.pipelines.small_trainings import train_small

pytestmark = pytest.mark.slow

SETTINGS = PretrainingSettings(
    size="tiny", num_steps=30, short_steps_fraction=0.6, global_batch_size=8,
    micro_batch_size=4, short_global_batch_size=20, short_micro_batch_size=8,
    mask_fraction=0.3, final_mask_fraction=0.15, evaluate_every_steps=15, evaluation_examples=32,
    final_evaluation_examples=32, checkpoint_every_steps=10, log_every_steps=1,
)  # fmt: skip
BOUNDARY, KILLED_AT = 18, 19  # the checkpoint before is that of step 10, in the short phase


@dataclass(frozen=True, slots=True, kw_only=True)
class DyingJob(PretrainingJob):
    """Its worker dies once at `KILLED_AT`."""

    name: ClassVar[str] = "phases"

    mark: str

    def on_rank(self) -> "DyingPretraining":
        return DyingPretraining(self)


class DyingPretraining(Pretraining):
    def micro_batches(self, step: int) -> Iterable[tuple[int, Batch]]:
        mark = self._job.mark and Path(self._job.mark)
        if mark and step == KILLED_AT and not mark.exists():
            mark.touch()
            time.sleep(3.0)  # what is on its way to the store arrives
            os.kill(os.getpid(), signal.SIGKILL)
        return super().micro_batches(step)


def trained(examples, vocabulary, folder: Path, mark: str) -> tuple[str, dict[str, Any], Any]:
    def read(checkpoint: Path) -> tuple[str, Any]:
        weights = checkpoint / MODEL_FOLDER
        return sha256_of_file(weights / WEIGHTS_FILE), load_model(weights).config

    job = DyingJob(
        stage="pretraining", settings=SETTINGS, precision="float32",
        cut=phases_of(SETTINGS)[1].cut, examples=examples, vocabulary=vocabulary, encoder=None,
        mark=mark,
    )  # fmt: skip
    told, (digest, config) = train_small(job, folder, read=read, cpus_per_worker=1)
    return digest, told, config


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
