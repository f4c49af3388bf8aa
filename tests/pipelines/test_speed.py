"""How fast a training run goes: what is told, and that it waits for its data as long as it says."""

import json
import math
import re
import threading
import time

import pytest
from mlflow import MlflowClient

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.step_operations import batch_operations
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.stage import Progress, StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.tracking.tracker import Tracker
from pipelines.training import speed as machine
from pipelines.training.speed import Speed, SystemMetrics
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

    speed = Speed(10, num_ranks=2, matrix_rate=1e9)
    batches_of = speed.timed(model, late)
    started = time.monotonic()
    for step in range(4):
        assert list(batches_of(step)) == [(0, batch)]
        speed.take_step(step + 1, 0.25)
    waited_and_told = time.monotonic() - started
    # Of all ranks twice as many tokens as of this one, in a second.
    figures = speed.figures(4, num_tokens=2 * 4 * 24, training_seconds=2.0)
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


def test_figures_are_those_since_the_point_before_and_a_resumed_run_counts_its_own(model):
    speed = Speed(10, num_ranks=1, matrix_rate=1e9)
    speed.resume(1000)
    batches_of = speed.timed(model, lambda step: [(0, pretraining_batch([8], VOCABULARY))])
    list(batches_of(0))
    speed.take_step(1, 0.5)
    assert speed.figures(1, 1008, 100.0)["speed/tokens_per_second"] == 16
    list(batches_of(1))
    speed.take_step(2, 0.25)
    assert speed.figures(2, 1016, 100.25)["speed/tokens_per_second"] == 32
    assert speed.seconds_left(10) == 0


class Figures:
    """Takes what a metric log would send."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def add(self, step: int, figures: dict[str, float]) -> None:
        self.points.append((step, figures))

    def keys(self) -> set[str]:
        return {key for _, figures in self.points for key in figures}


def test_a_sample_of_the_machine_costs_next_to_nothing_and_follows_the_step():
    """Ten seconds apart, 20 ms of a core are a five-hundredth of one."""
    log = Figures()
    system = SystemMetrics(log, sample_seconds=0.01)
    system.step = 7
    deadline = time.monotonic() + 240
    while len(log.points) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    system.close()
    assert {step for step, _ in log.points} <= {0, 7}
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_megabytes",
            "system/disk_usage_percentage"} <= log.keys()  # fmt: skip
    started = time.thread_time()
    for _ in range(20):
        system._sample()
    assert (time.thread_time() - started) / 20 < 0.02


class Unreachable:
    """A monitor whose driver lets nobody in."""

    def __init__(self) -> None:
        raise RuntimeError("Failed to initialize NVML")


def test_a_monitor_that_fails_ends_no_training_and_not_the_other_figures(monkeypatch, caplog):
    monkeypatch.setattr(machine.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "_has_nvidia_library", lambda: True)
    monkeypatch.setattr(machine, "GPUMonitor", Unreachable)
    num_asked = 0

    def fails_at_first(monitor: machine.DiskMonitor) -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked <= 3:
            raise OSError("no such device")
        monitor._metrics["disk_usage_percentage"].append(50.0)

    monkeypatch.setattr(machine.DiskMonitor, "collect_metrics", fails_at_first)
    log = Figures()
    system = SystemMetrics(log, sample_seconds=0.01)
    deadline = time.monotonic() + 240
    wanted = {"system/cpu_utilization_percentage", "system/disk_usage_percentage"}
    while not wanted <= log.keys():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    system.close()
    assert caplog.text.count("Unreachable is left out: Failed to initialize NVML") == 1
    assert caplog.text.count("DiskMonitor does not measure: no such device") == 1


def test_a_monitor_that_never_answers_holds_up_no_end(monkeypatch):
    monkeypatch.setattr(machine, "_PATIENCE_SECONDS", 0.2)
    asked, answered = threading.Event(), threading.Event()

    def never_answers(monitor: machine.DiskMonitor) -> None:
        asked.set()
        answered.wait()

    monkeypatch.setattr(machine.DiskMonitor, "collect_metrics", never_answers)
    log = Figures()
    system = SystemMetrics(log, sample_seconds=0.01)
    assert asked.wait(60)
    closing = threading.Thread(target=system.close, daemon=True)
    closing.start()
    closing.join(60)
    was_closed = not closing.is_alive()
    answered.set()
    assert was_closed


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
        if name.startswith(("total/", "checkpoint/")):  # for those who watch alone
            continue
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
