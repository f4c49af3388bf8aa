"""A training run that is disturbed ends like one that was not."""

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from pipelines.stage import Progress, StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.store import Artifact, ArtifactStore

pytestmark = pytest.mark.slow

SETTINGS = PretrainingSettings(
    size="tiny",
    num_steps=100,  # enough to be alive when the kill arrives
    global_batch_size=16,
    micro_batch_size=4,
    log_every_steps=1,
    evaluate_every_steps=50,
    checkpoint_every_steps=10,
)


@pytest.fixture(scope="module")
def undisturbed(small_examples, small_vocabulary, local_ray, tmp_path_factory) -> Artifact:
    context = StageContext(store=ArtifactStore(tmp_path_factory.mktemp("undisturbed")))
    return build_encoder(SETTINGS, small_examples, small_vocabulary, context)


def _history(encoder: Artifact) -> list[dict[str, float]]:
    return json.loads(encoder.local("history.json").read_text())


class WorkerKiller:
    """Kills the training worker with SIGKILL once, when the training run has come to `step`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.killed_at: float | None = None
        self.notes: list[str] = []

    def __call__(self, progress: Progress) -> None:
        if progress.note:
            self.notes.append(progress.note)
        if self.killed_at is None and progress.done >= self.step:
            self.killed_at = progress.done
            for process in psutil.Process().children(recursive=True):
                if "RayTrainWorker" in " ".join(process.cmdline()):
                    os.kill(process.pid, signal.SIGKILL)


def test_a_killed_worker_is_replaced_and_the_weights_are_the_same_bits(
    undisturbed: Artifact, small_examples, small_vocabulary, local_ray, tmp_path: Path
) -> None:
    killer = WorkerKiller(step=25)  # by then a checkpoint is known to Ray, however busy it is
    context = StageContext(store=ArtifactStore(tmp_path), observe=killer)
    encoder = build_encoder(SETTINGS, small_examples, small_vocabulary, context)
    assert killer.killed_at is not None
    resumed_from = encoder.statistics["resumed_from"]
    assert len(resumed_from) == 1, (killer.killed_at, killer.notes, resumed_from)
    assert resumed_from[0] in range(10, 100, 10)
    assert f"pretraining resumed from step {resumed_from[0]}" in killer.notes
    weights = "model.safetensors"
    assert encoder.manifest.files[weights] == undisturbed.manifest.files[weights]
    assert _history(encoder) == _history(undisturbed)
