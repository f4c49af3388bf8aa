"""A tracker that is away when a training run ends hears of it from the next, each point once."""

import time
from pathlib import Path

import pytest

from pipelines.artifacts import ArtifactStore, Built, Draft
from pipelines.artifacts.pruning import take_inventory
from pipelines.stage import StageContext
from pipelines.tracking.tracker import Tracker
from pipelines.training.metrics import Ending, MetricLog, Point, deliver_kept
from pipelines.training.runs import Trained, open_run, recorded
from tests.pipelines.trackers import FickleTracker, until

POINTS = [Point("train/loss", 1 / step, 1_700_000_000_000 + step, step) for step in range(1, 9)]


def steps_of(tracker: Tracker, run_id: str) -> list[int]:
    history = tracker.client().get_metric_history(run_id, "train/loss")
    return [point.step for point in history]


@pytest.mark.slow
def test_a_training_that_ends_without_its_tracker_is_whole_after_the_next_run(
    tracker: Tracker, fickle: FickleTracker, tmp_path: Path, caplog, monkeypatch
) -> None:
    monkeypatch.setattr("pipelines.training.metrics._LAST_WORDS_SECONDS", 3.0)
    before = Tracker(uri=fickle.uri, experiment="tests")
    store = ArtifactStore(tmp_path / "store")
    context = StageContext(store=store, tracker=before)
    run_ids: list[str] = []

    def train() -> Trained:
        log = MetricLog(fickle.uri, run_ids[0], flush_seconds=0.05)
        log.restore(POINTS[:3])
        until(lambda: not log.missing(), "the first points")
        fickle.answers = False
        log.restore(POINTS[3:])
        log.close(seconds=0.2)
        return Trained({"eval/accuracy": 0.5}, {"processor": "of the worker"}, log.missing())

    def build(draft: Draft) -> Built:
        run_id = open_run("pretraining", {}, draft, context)
        assert run_id is not None
        run_ids.append(run_id)
        return Built((), recorded(run_id, context, train))

    made = store.get_or_build("encoder", version=1, settings={}, inputs={}, build=build)
    (run_id,) = run_ids
    assert made.statistics == {"eval/accuracy": 0.5}
    assert "the next run with this store and tracker delivers them" in caplog.text
    assert steps_of(tracker, run_id) == [1, 2, 3]
    assert tracker.client().get_run(run_id).info.status == "RUNNING"
    assert not take_inventory(store).leftovers

    assert deliver_kept(store, before) == []  # it is still away
    fickle.answers = True
    assert deliver_kept(store, tracker) == []  # not the tracker that it was for
    (told,) = deliver_kept(store, before)
    assert told.startswith(f"delivered 5 points and the end of the run {run_id}")
    assert deliver_kept(store, before) == []
    assert steps_of(tracker, run_id) == list(range(1, 9))
    run = tracker.client().get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final/eval/accuracy"] == 0.5
    assert run.data.tags["bertsmith.computed_on.processor"] == "of the worker"


def test_what_was_kept_holds_no_secret_and_belongs_to_a_run(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    tracker = Tracker(
        uri=f"sqlite:///{tmp_path / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(tmp_path / "files").as_uri(),
    )
    run_id = tracker.create_run("training", "f", {}, {})
    ending = Ending(
        uri=Tracker(uri="http://someone:secret@tracker", experiment="tests").shown_uri,
        run_id=run_id, points=tuple(POINTS), figures={}, computed_on={}, end_time=1_700_000_001_000,
    )  # fmt: skip
    ending.keep(store)
    (kept,) = (tmp_path / "store" / ".undelivered").iterdir()
    assert "secret" not in kept.read_text()
    ending.model_copy(update={"uri": tracker.shown_uri}).keep(store)
    kept.with_name("torn.json").write_text("{")
    (told,) = deliver_kept(store, tracker)
    assert "delivered 8 points" in told
    assert steps_of(tracker, run_id) == list(range(1, 9))
    run = tracker.client().get_run(run_id)
    assert run.info.end_time == 1_700_000_001_000
    # Of another tracker, which has the same address on another machine: kept for a month.
    unknown = ending.model_copy(update={"uri": tracker.shown_uri, "run_id": "0" * 32})
    unknown.model_copy(update={"end_time": int(time.time() * 1000)}).keep(store)
    assert deliver_kept(store, tracker) == []
    assert sorted(path.stem for path in kept.parent.iterdir()) == ["0" * 32, "torn"]
    unknown.keep(store)
    (told,) = deliver_kept(store, tracker)
    assert "is gone from the tracker" in told
    assert [path.stem for path in kept.parent.iterdir()] == ["torn"]


def test_an_ending_that_nobody_can_take_holds_up_no_other(
    tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = ArtifactStore(tmp_path / "store")
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    run_ids = sorted(tracker.create_run("training", str(number), {}, {}) for number in range(3))
    for run_id in run_ids:
        Ending(
            uri=tracker.shown_uri, run_id=run_id, points=(), figures={}, computed_on={}, end_time=1
        ).keep(store)
    folder = tmp_path / "store" / ".undelivered"
    deleted, refused, last = run_ids
    tracker.client().delete_run(deleted)
    deliver = Ending.deliver

    def taken(ending: Ending, tracker: Tracker, seconds: float) -> bool:
        if ending.run_id == last:
            (folder / f"{last}.json").unlink()  # another run delivers it at this moment
        return ending.run_id != refused and deliver(ending, tracker, seconds)

    monkeypatch.setattr(Ending, "deliver", taken)
    gone, delivered = deliver_kept(store, tracker)
    assert gone.startswith(f"the run {deleted} is gone")
    assert delivered.startswith(f"delivered 0 points and the end of the run {last}")
    assert [path.stem for path in folder.iterdir()] == [refused]
    assert f"the end of the run {refused} waits for the next run" in caplog.text
