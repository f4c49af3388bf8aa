"""A training run's run in the tracker: one for each attempt, kept through interruptions."""

import os
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.config.errors import UserError
from pipelines.stage import StageContext
from pipelines.tracking.tracker import Tracker
from pipelines.training.metrics import MetricLog
from pipelines.training.runs import Trained, _keep_run, open_run, recorded


class InterruptedTrainingError(Exception):
    """What ends an attempt in the middle."""


class Training:
    """A stage that logs three points, or is interrupted after the first."""

    def __init__(self, home: Path, name: str = "first") -> None:
        self.tracker = Tracker(uri=f"sqlite:///{home / name}.db", experiment="tests")
        self.context = StageContext(store=ArtifactStore(home / "store"), tracker=self.tracker)
        self.run_ids: list[str | None] = []

    def build(self, num_points: int = 3) -> Artifact:
        def make(draft: Draft) -> Built:
            run_id = open_run("pretraining", {}, draft, self.context)
            self.run_ids.append(run_id)
            assert run_id is not None
            statistics = recorded(run_id, self.context, lambda: self.train(run_id, num_points))
            return Built((), statistics)

        return self.context.store.get_or_build(
            "encoder", version=1, settings={}, inputs={}, build=make
        )

    def train(self, run_id: str, num_points: int) -> Trained:
        log = MetricLog(self.tracker.uri, run_id)
        for step in range(num_points):
            log.add(step, {"train/loss": float(step)})
        log.close(seconds=60)
        if num_points < 3:
            raise InterruptedTrainingError
        return Trained({"eval/accuracy": 0.5}, {"processor": "of the worker"})

    def steps(self, run_id: str | None) -> list[int]:
        assert run_id is not None
        history = self.tracker.client().get_metric_history(run_id, "train/loss")
        return [point.step for point in history]


def test_an_attempt_keeps_its_run_and_a_retraining_gets_another(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=1)
    encoder = training.build()
    interrupted, resumed = training.run_ids
    assert interrupted == resumed
    assert training.steps(resumed) == [0, 1, 2]

    shutil.rmtree(encoder.url)
    training.build()
    retrained = training.run_ids[-1]
    assert retrained != resumed
    assert training.steps(retrained) == training.steps(resumed) == [0, 1, 2]
    assert training.tracker.find_run(encoder.fingerprint) == retrained
    run = training.tracker.client().get_run(retrained)
    assert run.info.status == "FINISHED"
    assert run.data.tags["bertsmith.computed_on.processor"] == "of the worker"


def test_an_attempt_that_goes_on_with_another_tracker_gets_a_run_there(tmp_path: Path) -> None:
    with pytest.raises(InterruptedTrainingError):
        Training(tmp_path).build(num_points=1)
    moved = Training(tmp_path, "second")
    moved.build()
    assert moved.steps(moved.run_ids[0]) == [0, 1, 2]


def test_a_run_that_somebody_deleted_is_not_gone_on_with(tmp_path: Path) -> None:
    training = Training(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=1)
    training.tracker.client().delete_run(training.run_ids[0])
    training.build()
    assert training.run_ids[1] != training.run_ids[0]
    assert training.steps(training.run_ids[1]) == [0, 1, 2]


def test_a_tracker_that_goes_away_while_the_run_is_taken_up_is_a_sentence(
    tmp_path: Path, monkeypatch
) -> None:
    training = Training(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=1)

    def away(*_: object, **__: object) -> None:
        raise MlflowException("connection refused")

    monkeypatch.setattr(MlflowClient, "update_run", away)
    with pytest.raises(UserError, match=r"tracker at .* failed: .*connection refused"):
        training.build()


@pytest.mark.parametrize("left", ["", '{"uri": "sqlite', "[]", "{}"])
def test_a_record_that_a_power_cut_spoiled_costs_a_new_run_and_nothing_else(
    tmp_path: Path, left: str
) -> None:
    training = Training(tmp_path)
    with pytest.raises(InterruptedTrainingError):
        training.build(num_points=1)
    (record,) = tmp_path.rglob("tracking.json")
    record.write_text(left)
    training.build()
    assert training.run_ids[1] != training.run_ids[0]
    assert training.steps(training.run_ids[1]) == [0, 1, 2]


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    store = ArtifactStore(tmp_path / "store")

    def make(draft: Draft) -> Built:
        _keep_run(draft, tracker, "a-run")
        record = Path(draft.work) / "tracking.json"
        earlier = tmp_path / "earlier"
        os.link(record, earlier)  # a reader that holds the file open keeps its bytes
        _keep_run(draft, tracker, "another-run")
        assert '"a-run"' in earlier.read_text()
        assert '"another-run"' in record.read_text()
        return Built((), {})

    store.get_or_build("encoder", version=1, settings={}, inputs={}, build=make)


def test_what_is_kept_beside_the_checkpoints_holds_no_password(tmp_path: Path) -> None:
    secret = Tracker(uri="http://ada:enigma@127.0.0.1:1", experiment="tests")
    store = ArtifactStore(tmp_path)

    def make(draft: Draft) -> Built:
        _keep_run(draft, secret, "a-run")
        text = (Path(draft.work) / "tracking.json").read_text()
        assert "127.0.0.1:1" in text and "enigma" not in text
        return Built((), {})

    store.get_or_build("encoder", version=1, settings={}, inputs={}, build=make)
