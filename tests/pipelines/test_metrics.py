"""Points on their way to MLflow: nobody waits for a tracker."""

import socket
import time

import pytest

from pipelines.tracking.tracker import Tracker
from pipelines.train import metrics
from pipelines.train.metrics import MetricLog


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(metrics, "_LAST_WORDS_SECONDS", 60.0)


def a_run(tracker: Tracker, name: str) -> str:
    return tracker.create_run("training", name, {}, {})


def steps_of(tracker: Tracker, run_id: str) -> list[int]:
    history = tracker.client().get_metric_history(run_id, "train/loss")
    return sorted(point.step for point in history)


def test_a_resumed_training_logs_each_point_once(tracker: Tracker) -> None:
    run_id = a_run(tracker, "resumed")
    log = MetricLog(tracker.uri, run_id)
    for step in (10, 20, 30):
        log.add(step, {"train/loss": 1 / step})
    log.close()
    resumed = MetricLog(tracker.uri, run_id)
    for step in (20, 30, 40):
        resumed.add(step, {"train/loss": 1 / step})
    resumed.close()
    assert steps_of(tracker, run_id) == [10, 20, 30, 40]


def test_a_tracker_that_never_answers_is_not_waited_for(monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1000")
    monkeypatch.setattr(metrics, "_LAST_WORDS_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        log = MetricLog(f"http://127.0.0.1:{silent.getsockname()[1]}", "run")
        started = time.monotonic()
        for step in range(10_000):
            log.add(step, {"train/loss": 1.0})
        log.close()
        assert time.monotonic() - started < 500  # half of what one answer would be waited for
