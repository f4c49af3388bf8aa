"""Runs, metrics and lineage reach MLflow once, and its absence stops nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.settings import RuntimeSettings
from pipelines.stage import open_tracker
from pipelines.tracking.tracker import Tracker


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """A tracker on SQLite; its database is made once for these tests."""
    home = tmp_path_factory.mktemp("a home")
    return Tracker(
        uri=f"sqlite:///{home / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(home / "files").as_uri(),
        tags={"flow_run": "brave-otter"},
    )


def test_a_run_is_found_by_its_fingerprint(tracker: Tracker) -> None:
    first = tracker.create_run("training", "f1", {"rate": 0.1}, {"stage": "pretraining"})
    tracker.finish(first, {"eval/accuracy": 0.5})
    tracker.create_run("training", "f2", {}, {})
    assert tracker.find_run("f3") is None
    run = tracker.find_run("f1")
    assert run is not None
    assert run.info.run_id == first
    assert run.data.params == {"rate": "0.1"}
    assert run.data.tags["flow_run"] == "brave-otter"
    assert run.data.tags["stage"] == "pretraining"
    assert run.data.metrics["final/eval/accuracy"] == 0.5


def test_the_tracker_of_one_home_is_not_taken_for_one_that_somebody_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    first, second = (RuntimeSettings(home=str(tmp_path / name)) for name in ("first", "second"))
    own = open_tracker(second).uri
    open_tracker(first).client()
    assert open_tracker(second).uri == own
    assert "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    open_tracker(second).client()
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:9"


def test_processes_that_are_the_first_at_once_make_the_tracker_in_turn(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    ask = (
        "import sys; from pipelines.tracking.tracker import Tracker; "
        "print(Tracker(uri=sys.argv[1], experiment='one').experiment_id())"
    )
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ask, uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    answers = [process.communicate(timeout=400) for process in asking]
    assert [process.returncode for process in asking] == [0, 0, 0], answers
    assert len({out for out, _ in answers}) == 1
