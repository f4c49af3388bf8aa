"""Runs of the tracker whose flow runs are gone."""

from pathlib import Path

from pipelines.core.tracking.abandoned import FLOW_RUN_TAG, end_abandoned_runs
from pipelines.core.tracking.tracker import Tracker


def status(tracker: Tracker, run_id: str) -> str:
    return str(tracker.client().get_run(run_id).info.status)


def test_open_runs_of_dead_flow_runs_are_killed_and_no_others(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def tracker(**tags: str) -> Tracker:
        return Tracker(uri=uri, experiment="bertsmith", tags=tags)

    dead = tracker(**{FLOW_RUN_TAG: "dead"})
    left_open = dead.open_run("left open", "1", {}, {})
    finished = dead.open_run("finished", "2", {}, {})
    dead.finish(finished, {})
    alive = tracker(**{FLOW_RUN_TAG: "alive"}).open_run("alive", "3", {}, {})
    a_persons = tracker().open_run("a person's own", "4", {}, {})

    assert end_abandoned_runs(uri, lambda flow_run: flow_run == "dead") == ["left open"]
    assert status(dead, left_open) == "KILLED"
    assert status(dead, finished) == "FINISHED"
    assert {status(dead, run) for run in (alive, a_persons)} == {"RUNNING"}


def test_a_resumed_run_belongs_to_the_flow_run_that_resumed_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    first, second = (
        Tracker(uri=uri, experiment="bertsmith", tags={FLOW_RUN_TAG: name})
        for name in ("first", "second")
    )
    run = first.open_run("pretraining", "1", {}, {})
    assert end_abandoned_runs(uri, lambda flow_run: flow_run == "first") == ["pretraining"]
    assert second.open_run("pretraining", "1", {}, {}) == run
    assert end_abandoned_runs(uri, lambda flow_run: flow_run == "first") == []
    assert status(second, run) == "RUNNING"
