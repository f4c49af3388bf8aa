"""How fast a training run goes: what is told, and that it waits for its data as long as it says."""

import json
import math
import re
import time

import pytest
from mlflow import MlflowClient

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.step_operations import batch_operations
from pipelines.stage import Progress, StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.store import Artifact, ArtifactStore
from pipelines.tracking.tracker import Tracker
from pipelines.train.metrics import Speed
from tests.bert_core.batches import pretraining_batch

VOCABULARY = 300
WAIT_SECONDS = 0.05
FIGURES = {
    "speed/tokens_per_second", "speed/tokens_per_second_overall", "speed/utilization",
    "speed/data_wait", "speed/step_seconds_p50", "speed/step_seconds_p95",
    "speed/step_seconds_p99", "speed/seconds_left", "memory/resident_bytes", "memory/peak_bytes",
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> PretrainingModel:
    return PretrainingModel(encoder_config("tiny", VOCABULARY), next_sentence=False)


def test_what_is_told_is_what_was_waited_for_and_computed(model):
    batch = pretraining_batch([8, 16], VOCABULARY)

    slept = 0.0

    def late(step):
        nonlocal slept
        started = time.monotonic()
        time.sleep(WAIT_SECONDS)  # on a busy machine longer
        slept += time.monotonic() - started
        yield 0, batch

    speed = Speed(num_ranks=2, matrix_rate=1e9)
    batches_of = speed.timed(model, late)
    started = time.monotonic()
    for step in range(4):
        assert list(batches_of(step)) == [(0, batch)]
        speed.take_step(step + 1, 0.25)
    waited_and_told = time.monotonic() - started
    # Of all ranks twice as many tokens as of this one, in a second.
    figures = speed.figures(4, 10, num_tokens=2 * 4 * 24, training_seconds=2.0)
    assert set(figures) == FIGURES
    assert figures["speed/tokens_per_second"] == 192
    assert figures["speed/tokens_per_second_overall"] == 96
    operations = 2 * 4 * batch_operations(model, batch)
    assert figures["speed/utilization"] == pytest.approx(operations / 2e9)
    # The steps took a second together.
    assert slept <= figures["speed/data_wait"] <= waited_and_told
    assert figures["speed/step_seconds_p99"] == 0.25
    assert figures["memory/peak_bytes"] >= figures["memory/resident_bytes"] > 1e7
    assert 0 < figures["speed/seconds_left"] < 100


@pytest.mark.slow
def test_the_same_figures_stand_in_mlflow_and_before_those_who_watch(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray, tmp_path
):
    seen: list[Progress] = []
    tracker = Tracker(
        uri=f"sqlite:///{tmp_path / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(tmp_path / "files").as_uri(),
    )
    context = StageContext(store=ArtifactStore(tmp_path), observe=seen.append, tracker=tracker)
    settings = PretrainingSettings(
        size="tiny", num_steps=12, global_batch_size=8, micro_batch_size=4,
        log_every_steps=4, evaluate_every_steps=100, checkpoint_every_steps=100,
    )  # fmt: skip
    encoder = build_encoder(settings, small_examples, small_vocabulary, context)
    run_id = tracker.find_run(encoder.fingerprint)
    client: MlflowClient = tracker.client()
    run = client.get_run(run_id)
    shown = dict(seen[-1].figures)
    assert shown.keys() >= FIGURES | {"train/loss", "train/learning_rate", "train/gradient_norm"}
    for name, value in shown.items():
        (last,) = [p for p in client.get_metric_history(run_id, name) if p.step == 12]
        assert math.isclose(last.value, value), name
    assert 0 < shown["speed/utilization"] < 1.5
    assert 0 <= shown["speed/data_wait"] < 1
    # The curve holds facts alone, which any other run repeats.
    history = json.loads(encoder.local("history.json").read_text())
    assert [point["step"] for point in history] == [4, 8, 12]
    assert not any(re.match("speed|memory|system", name) for point in history for name in point)
    (trained_on,) = run.inputs.dataset_inputs
    assert trained_on.dataset.name == "examples"
    assert trained_on.dataset.digest == small_examples.fingerprint
    assert json.loads(trained_on.dataset.source) == {"uri": small_examples.url}
    rows = small_examples.statistics["train"]["examples"]
    assert json.loads(trained_on.dataset.profile) == {"num_rows": rows}
    assert {tag.key: tag.value for tag in trained_on.tags} == {"mlflow.data.context": "training"}
