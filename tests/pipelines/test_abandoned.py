"""Runs of the tracker whose flow runs are gone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.artifacts import ArtifactStore, Built, Draft
from pipelines.stage import StageContext
from pipelines.tracking.server import FLOW_RUN_TAG, end_abandoned_runs
from pipelines.tracking.tracker import Tracker
from pipelines.training.runs import open_run


def status(tracker: Tracker, run_id: str) -> str:
    return str(tracker.client().get_run(run_id).info.status)


def test_open_runs_of_dead_flow_runs_are_killed_and_no_others(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def tracker(**tags: str) -> Tracker:
        return Tracker(uri=uri, experiment="bertsmith", tags=tags)

    dead = tracker(**{FLOW_RUN_TAG: "dead"})
    left_open = dead.create_run("left open", "1", {}, {})
    finished = dead.create_run("finished", "2", {}, {})
    dead.finish(finished, {})
    alive = tracker(**{FLOW_RUN_TAG: "alive"}).create_run("alive", "3", {}, {})
    a_persons = tracker().create_run("a person's own", "4", {}, {})

    assert end_abandoned_runs(uri, lambda flow_run: flow_run == "dead") == ["left open"]
    assert status(dead, left_open) == "KILLED"
    assert status(dead, finished) == "FINISHED"
    assert {status(dead, run) for run in (alive, a_persons)} == {"RUNNING"}


def test_a_resumed_run_belongs_to_the_flow_run_that_resumed_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    store = ArtifactStore(tmp_path / "store")

    def build(flow_run: str, during: Callable[[Tracker, str], None]) -> None:
        tracker = Tracker(uri=uri, experiment="bertsmith", tags={FLOW_RUN_TAG: flow_run})

        def make(draft: Draft) -> Built:
            context = StageContext(store=store, tracker=tracker)
            run_id = open_run("pretraining", {}, draft, context)
            assert run_id is not None
            during(tracker, run_id)
            return Built((), {})

        store.get_or_build("encoder", version=1, settings={}, inputs={}, build=make)

    seen: list[str] = []

    def lost(tracker: Tracker, run_id: str) -> None:
        seen.append(run_id)
        raise ConnectionError("the machine is gone")

    def resumed(tracker: Tracker, run_id: str) -> None:
        assert seen == [run_id]
        assert end_abandoned_runs(uri, lambda flow_run: flow_run == "first") == []
        assert status(tracker, run_id) == "RUNNING"

    with pytest.raises(ConnectionError):
        build("first", lost)
    (name,) = end_abandoned_runs(uri, lambda flow_run: flow_run == "first")
    assert name.startswith("pretraining-")
    build("second", resumed)
