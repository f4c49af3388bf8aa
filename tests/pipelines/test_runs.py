"""A training run's run in the tracker: one for each attempt, kept through interruptions."""

import json
import math
import shutil
import socket
import time
from pathlib import Path

import pytest

from pipelines.stage import StageContext
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from pipelines.tracking.tracker import Tracker
from pipelines.train import metrics
from pipelines.train.metrics import (
    HISTORY_FILE,
    EarlyStopping,
    MetricLog,
    best_step,
    finish_run,
    open_run,
    validation_losses,
)
from tests.pipelines.trackers import FickleTracker


class InterruptedTrainingError(Exception):
    """What ends an attempt in the middle."""


class Training:
    """A stage that logs three points, or is interrupted after the first."""

    def __init__(self, home: Path, uri: str = "") -> None:
        self.tracker = Tracker(uri=uri or f"sqlite:///{home}/mlflow.db", experiment="tests")
        self.context = StageContext(store=ArtifactStore(home / "store"), tracker=self.tracker)
        self.run_ids: list[str] = []

    def build(self, num_points: int = 3) -> Artifact:
        def make(draft: Draft) -> Built:
            with open_run("pretraining", {}, draft, self.context) as run_id:
                assert run_id is not None
                self.run_ids.append(run_id)
                self.train(run_id, num_points)
            history = [{"step": step, "train/loss": float(step)} for step in range(3)]
            draft.write(HISTORY_FILE, json.dumps(history).encode())
            return Built(
                [HISTORY_FILE],
                {"eval/accuracy": 0.5, "computed_on": {"processor": "of the worker"}},
            )

        artifact = self.context.store.get_or_build(
            "encoder", version=1, settings={}, inputs={}, build=make
        )
        finish_run(artifact, self.context)
        return artifact

    def train(self, run_id: str, num_points: int) -> None:
        log = MetricLog(self.tracker.uri, run_id)
        for step in range(num_points):
            log.add(step, {"train/loss": float(step)})
        log.close()
        if num_points < 3:
            raise InterruptedTrainingError

    def steps(self, run_id: str) -> list[int]:
        history = self.tracker.client().get_metric_history(run_id, "train/loss")
        return sorted(point.step for point in history)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_LAST_WORDS_SECONDS", 60.0)


def test_an_attempt_keeps_its_run_and_each_point_once_and_a_retraining_gets_another(
    tmp_path: Path,
) -> None:
    training = Training(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=1)
    training.tracker.client().delete_run(training.run_ids[0])  # by somebody: it is not resumed
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=2)
    encoder = training.build()
    deleted, interrupted, resumed = training.run_ids
    assert deleted != interrupted == resumed
    assert training.steps(resumed) == [0, 1, 2]

    shutil.rmtree(encoder.url)
    training.build()
    retrained = training.run_ids[-1]
    assert retrained != resumed
    assert training.steps(retrained) == training.steps(resumed) == [0, 1, 2]
    run = training.tracker.find_run(encoder.fingerprint)
    assert run is not None
    assert run.info.run_id == retrained
    assert run.info.status == "FINISHED"
    assert run.data.tags["bertsmith.computed_on.processor"] == "of the worker"


def test_a_tracker_that_never_answers_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1000")
    monkeypatch.setattr(metrics, "_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(metrics, "_LAST_WORDS_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        log = MetricLog(f"http://127.0.0.1:{silent.getsockname()[1]}", "run")
        started = time.monotonic()
        for step in range(10_000):
            log.add(step, {"train/loss": 1.0})
        log.close()
        assert time.monotonic() - started < 500  # half of what one answer would be waited for


def test_the_first_of_the_least_validation_losses_is_the_best_and_patience_counts_from_it() -> None:
    losses = {2: math.nan, 4: 0.5, 6: 0.4, 8: 0.4, 10: 0.6}
    history = [{"step": 1, "train/loss": 0.1}]
    history += [{"step": step, "validation/a_loss": loss} for step, loss in losses.items()]
    assert best_step(history) == 6
    assert validation_losses(history)[2] == math.inf
    assert [EarlyStopping(patience).should_stop(history) for patience in (1, 2, 3)] == [
        True,
        True,
        False,
    ]


@pytest.mark.slow
def test_a_tracker_that_was_away_gets_the_whole_curve_from_the_next_run_and_once(
    tracker: Tracker, fickle: FickleTracker, tmp_path: Path
) -> None:
    training = Training(tmp_path, uri=fickle.uri)

    def train(run_id: str, num_points: int) -> None:
        fickle.answers = False  # until after the model is published

    training.train = train  # type: ignore[method-assign]
    encoder = training.build()
    (run_id,) = training.run_ids
    client = tracker.client()
    assert client.get_run(run_id).info.status == "RUNNING"
    assert client.get_metric_history(run_id, "train/loss") == []
    fickle.answers = True
    for _ in range(2):
        assert training.build().fingerprint == encoder.fingerprint
        assert training.steps(run_id) == [0, 1, 2]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final/eval/accuracy"] == 0.5
