"""Points on their way to MLflow: each arrives once, and nobody waits for a tracker."""

import socket
import time

import pytest

from pipelines.core.tracking.tracker import Tracker
from pipelines.training.telemetry.curve import Telemetry
from pipelines.training.telemetry.metrics import MetricLog, Point
from pipelines.training.telemetry.speed import Speed
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
    assert not resumed.waiting()
    assert steps_of(tracker, run_id) == [10, 20, 30, 40]


def test_points_between_two_steps_all_arrive(tracker: Tracker) -> None:
    """Of a machine that is looked at every ten seconds, in a step that takes minutes."""
    run_id = a_run(tracker, "slow steps")
    log = MetricLog(tracker.uri, run_id, flush_seconds=0.01)
    for second in range(3):
        log.restore([Point("train/loss", float(second), 1_700_000_000_000 + second, 7)])
        until(lambda: not log.waiting(), "the point")
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
        assert not log.waiting()
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
        assert [point.step for point in log.waiting()] == list(range(10_000))


def test_what_waits_beside_the_curve_is_bounded_and_the_curve_is_whole(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.training.telemetry.metrics._MOST_BESIDE", 10)
    log = MetricLog("http://127.0.0.1:9", "run", flush_seconds=1000)
    for step in range(15):
        log.add(step, {"train/loss": 1.0, "speed/utilization": 0.5, "eval/loss": 2.0})

    def steps(key: str) -> list[int]:
        return [point.step for point in log.waiting() if point.key == key]

    assert steps("train/loss") == steps("eval/loss") == list(range(15))
    assert steps("speed/utilization") == list(range(5, 15))
    (said,) = log.news()
    assert said.startswith("10 points beside the curve wait for the tracker")
    assert log.news() == []
    log.close()


def test_that_points_are_dropped_is_told_to_who_watches(monkeypatch) -> None:
    monkeypatch.setattr("pipelines.training.telemetry.metrics._MOST_BESIDE", 1)
    log = MetricLog("http://127.0.0.1:9", "run", flush_seconds=1000)
    speed = Speed(10, num_ranks=1, matrix_rate=1e9)
    telemetry = Telemetry("pretraining", 10, None, log, speed)
    said: list[str] = []
    monkeypatch.setattr(telemetry, "warn", said.append)
    for step in range(1, 4):
        telemetry.take_step(step, 0.1)
        telemetry.log_speed(step, 100.0 * step)
    assert [sentence.partition(":")[0] for sentence in said] == [
        "1 points beside the curve wait for the tracker"
    ]
    telemetry.close()


def test_a_tracker_that_cannot_be_opened_at_first_gets_its_points_later(tracker: Tracker) -> None:
    """MLflow opens a database with its client, and raises what the database's library does."""
    run_id = a_run(tracker, "late")
    log = MetricLog("no-such-kind://x", run_id, flush_seconds=0.05)
    log.add(1, {"train/loss": 1.0})
    until(lambda: any("metrics wait" in each for each in log.news()), "the word of its silence")
    log._uri = tracker.uri  # as if it were there by now
    until(lambda: not log.waiting(), "the point")
    log.close()
    assert steps_of(tracker, run_id) == [1]


@pytest.mark.slow
def test_what_waited_arrives_once_when_the_tracker_answers_again(
    tracker: Tracker, fickle: FickleTracker, caplog
) -> None:
    run_id = a_run(tracker, "fickle")
    log = MetricLog(fickle.uri, run_id, flush_seconds=0.05)
    log.add(1, {"train/loss": 1.0})
    until(lambda: not log.waiting(), "the first point")
    fickle.answers = False
    asked = fickle.num_asked
    for step in range(2, 50):
        log.add(step, {"train/loss": 1 / step})
    until(lambda: "the tracker does not answer" in caplog.text, "the word of its silence")
    assert len(log.waiting()) == 48
    assert steps_of(tracker, run_id) == [1]
    fickle.answers = True
    log.add(50, {"train/loss": 1 / 50})
    until(lambda: not log.waiting(), "all points")
    log.close()
    assert fickle.num_asked >= asked
    assert steps_of(tracker, run_id) == list(range(1, 51))
    assert caplog.text.count("the tracker does not answer") == 1
