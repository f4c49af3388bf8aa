"""Points on their way to MLflow: each arrives once, and nobody waits for a tracker."""

import socket
import time

import pytest

from pipelines.tracking.tracker import Tracker
from pipelines.training.curve import Telemetry
from pipelines.training.metrics import MetricLog, Point
from pipelines.training.speed import Speed
from tests.pipelines.trackers import FickleTracker, until


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
    assert not resumed.missing()
    assert steps_of(tracker, run_id) == [10, 20, 30, 40]


def test_points_between_two_steps_all_arrive(tracker: Tracker) -> None:
    """Of a machine that is looked at every ten seconds, in a step that takes minutes."""
    run_id = a_run(tracker, "slow steps")
    log = MetricLog(tracker.uri, run_id, flush_seconds=0.01)
    for second in range(3):
        log.restore([Point("train/loss", float(second), 1_700_000_000_000 + second, 7)])
        until(lambda: not log.missing(), "the point")
    log.close()
    assert steps_of(tracker, run_id) == [7, 7, 7]


def test_a_point_that_is_sent_twice_is_one_point(tracker: Tracker) -> None:
    """What was taken though the answer was lost comes again, to a log that does not know it."""
    run_id = a_run(tracker, "twice")
    point = Point("train/loss", 0.5, 1_700_000_000_000, 10)
    for _ in range(2):
        log = MetricLog(tracker.uri, run_id)
        log._last_step["train/loss"] = -1
        log.restore([point])
        log.close()
        assert not log.missing()
    assert steps_of(tracker, run_id) == [10]


def test_a_tracker_that_never_answers_is_not_waited_for(caplog, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1000")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        log = MetricLog(f"http://127.0.0.1:{silent.getsockname()[1]}", "run", flush_seconds=0.01)
        started = time.monotonic()
        for step in range(10_000):
            log.add(step, {"train/loss": 1.0})
        log.close(seconds=0.5)
        assert time.monotonic() - started < 500  # half of what one answer would be waited for
        assert [point.step for point in log.missing()] == list(range(10_000))


def test_a_silent_tracker_costs_what_is_beside_the_curve_and_nothing_of_it(
    monkeypatch, tracker: Tracker
) -> None:
    run_id = a_run(tracker, "silent")
    said: list[str] = []
    log = MetricLog("no-such-kind://x", run_id, flush_seconds=0.05, warn=said.append)
    log.add(1, {"train/loss": 1.0, "speed/utilization": 0.5, "eval/loss": 2.0}, 1_700_000_000_000)
    until(lambda: bool(said), "the word of its silence")
    assert [point.key for point in log.missing()] == ["train/loss", "eval/loss"]
    log._uri = tracker.uri  # as if it were there by now
    until(lambda: not log.missing(), "the curve")
    log.add(2, {"speed/utilization": 0.7})
    log.close(seconds=60)
    client = tracker.client()
    (loss,) = client.get_metric_history(run_id, "train/loss")
    assert (loss.step, loss.timestamp) == (1, 1_700_000_000_000)
    assert [each.step for each in client.get_metric_history(run_id, "speed/utilization")] == [2]
    assert len(said) == 1


def test_a_training_that_is_taken_up_tells_what_the_tracker_lacks_at_its_time(
    monkeypatch, tracker: Tracker, tmp_path
) -> None:
    run_id = a_run(tracker, "taken up")

    def telemetry(uri: str) -> Telemetry:
        speed = Speed(10, num_ranks=1, matrix_rate=1e9)
        monkeypatch.setattr("pipelines.training.curve.SystemMetrics", lambda log: None)
        return Telemetry("pretraining", 10, None, MetricLog(uri, run_id, flush_seconds=0.05), speed)

    away = telemetry("no-such-kind://x")
    for step in (1, 2):
        monkeypatch.setattr("pipelines.training.curve.now_ms", lambda step=step: step)
        away.log(step, {"train/loss": 1 / step})
        away.log(step, {"eval/loss": 2 / step})
    away.save(tmp_path)
    away.close()
    resumed = telemetry(tracker.uri)
    resumed.restore(tmp_path, 2)
    assert resumed.history == away.history
    resumed.close()
    assert resumed.undelivered() == []
    for key in ("train/loss", "eval/loss"):
        points = tracker.client().get_metric_history(run_id, key)
        assert sorted((point.step, point.timestamp) for point in points) == [(1, 1), (2, 2)]


def test_a_tracker_that_cannot_be_opened_at_first_gets_its_points_later(tracker: Tracker) -> None:
    """MLflow opens a database with its client, and raises what the database's library does."""
    run_id = a_run(tracker, "late")
    said: list[str] = []
    log = MetricLog("no-such-kind://x", run_id, flush_seconds=0.05, warn=said.append)
    log.add(1, {"train/loss": 1.0})
    until(lambda: any("metrics wait" in each for each in said), "the word of its silence")
    log._uri = tracker.uri  # as if it were there by now
    until(lambda: not log.missing(), "the point")
    log.close()
    assert steps_of(tracker, run_id) == [1]


@pytest.mark.slow
def test_what_waited_arrives_once_when_the_tracker_answers_again(
    tracker: Tracker, fickle: FickleTracker, caplog
) -> None:
    run_id = a_run(tracker, "fickle")
    log = MetricLog(fickle.uri, run_id, flush_seconds=0.05)
    log.add(1, {"train/loss": 1.0})
    until(lambda: not log.missing(), "the first point")
    fickle.answers = False
    asked = fickle.num_asked
    for step in range(2, 50):
        log.add(step, {"train/loss": 1 / step})
    until(lambda: "the tracker does not answer" in caplog.text, "the word of its silence")
    assert len(log.missing()) == 48
    assert steps_of(tracker, run_id) == [1]
    fickle.answers = True
    log.add(50, {"train/loss": 1 / 50})
    until(lambda: not log.missing(), "all points")
    log.close()
    assert fickle.num_asked >= asked
    assert steps_of(tracker, run_id) == list(range(1, 51))
    assert caplog.text.count("the tracker does not answer") == 1
