"""What a store holds is told, and what nothing stands on can go; what lives never does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows.report import open_parent_run
from pipelines.recipes.recipe import Recipe
from pipelines.registry.find import fingerprints_in_use
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from pipelines.store.pruning import plan, remove_entry, take_inventory
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker

LATER = datetime.now(UTC) + timedelta(days=100)


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    if request.param == "local":
        return ArtifactStore(tmp_path / "a store")
    return ArtifactStore(f"memory://{tmp_path.name}/store")


def _write(draft: Draft) -> Built:
    with draft.file("a.txt") as file:
        file.path.write_text("a" * 100)
    return Built(["a.txt"], {})


def _build(store: ArtifactStore, kind: str, build=_write, **inputs: Artifact) -> Artifact:
    return store.get_or_build(kind, version=1, settings={}, inputs=inputs, build=build)


def _prune(store: ArtifactStore, *in_use: str, now: datetime = LATER) -> list[tuple[str, bool]]:
    """What was removed: its kind, and whether it was an artifact."""
    removals = plan(take_inventory(store), in_use, now=now, days=30)
    for entry in removals:
        remove_entry(store, entry)
    return sorted((each.kind, each.manifest is not None) for each in removals)


def _files(store: ArtifactStore) -> list[str]:
    return [path for path in store.filesystem.find(store.root) if "/.lock-" not in path]


def test_what_is_used_stays_with_all_that_made_it(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")
    vocabulary = _build(store, "vocabulary", corpus=corpus)
    encoder = _build(store, "encoder", vocabulary=vocabulary)
    _build(store, "dataset", corpus=corpus)
    assert _prune(store, encoder.fingerprint) == [("dataset", True)]
    for artifact in (corpus, vocabulary, encoder):
        assert store.find(artifact.kind, artifact.fingerprint) is not None
    assert _prune(store) == [("corpus", True), ("encoder", True), ("vocabulary", True)]
    assert _files(store) == []


def test_an_interrupted_build_can_go_on_until_it_is_old(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")

    def stop(draft: Draft) -> Built:
        _write(draft)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        _build(store, "vocabulary", stop, corpus=corpus)
    assert _prune(store, now=datetime.now(UTC)) == []
    assert _prune(store) == [("corpus", True), ("vocabulary", False)]
    assert _files(store) == []


def test_a_build_that_goes_on_while_its_draft_is_removed_is_whole(store: ArtifactStore) -> None:
    def stop(draft: Draft) -> Built:
        _write(draft)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        _build(store, "corpus", stop)
    (draft,) = plan(take_inventory(store), (), now=LATER, days=30)

    def remove_meanwhile(unfinished: Draft) -> Built:
        if store.is_local:  # its builder holds the lock
            assert not remove_entry(store, draft)
        return _write(unfinished)

    corpus = _build(store, "corpus", remove_meanwhile)
    remove_entry(store, draft)
    assert corpus.local("a.txt").read_text() == "a" * 100


def test_what_a_live_builder_holds_or_reads_is_never_removed(store: ArtifactStore) -> None:
    """Whatever `days` says: what was written within a day may still be built."""
    corpus = _build(store, "corpus")
    now = datetime.now(UTC) + timedelta(hours=23)
    removed = []

    def prune_meanwhile(draft: Draft) -> Built:
        built = _write(draft)
        removed.extend(plan(take_inventory(store), (), now=now, days=0))
        return built

    vocabulary = _build(store, "vocabulary", prune_meanwhile, corpus=corpus)
    assert removed == []
    assert len(plan(take_inventory(store), (), now=now, days=0)) == 2
    assert vocabulary.local("a.txt").read_text() == corpus.local("a.txt").read_text() == "a" * 100


def test_files_of_no_artifact_go_when_old(store: ArtifactStore) -> None:
    artifact = _build(store, "corpus")
    store.filesystem.pipe_file(f"{artifact.root}/note.txt", b"of nobody")
    assert _prune(store, artifact.fingerprint) == [("corpus", False)]
    assert sorted(path.rpartition("/")[2] for path in _files(store)) == ["a.txt", "manifest.json"]


def test_models_and_recent_runs_stand_on_the_fingerprints_in_their_tags(tmp_path: Path) -> None:
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="pruning")
    encoder, corpus, classifier = "e" * 32, "c" * 32, "f" * 32
    run_id = tracker.create_run("pretraining", encoder, {}, {})
    client = tracker.client()
    client.create_registered_model("model")
    client.create_model_version(
        "model",
        source=str(tmp_path),
        tags={FINGERPRINT_TAG: classifier, "bertsmith.corpus": corpus, "bertsmith.kind": "x"},
    )
    models = {classifier: ("model/1",), corpus: ("model/1",)}
    assert fingerprints_in_use(tracker) == models
    long_ago = datetime.now(UTC) - timedelta(days=1)
    with_runs = fingerprints_in_use(tracker, since=long_ago)
    assert with_runs == models | {encoder: ("run pretraining",)}
    # A run that still runs counts whenever it began.
    assert fingerprints_in_use(tracker, since=LATER) == with_runs
    tracker.finish(run_id, {})
    assert fingerprints_in_use(tracker, since=LATER) == models


def test_what_a_recent_run_found_there_is_not_removed(tmp_path: Path) -> None:
    store, tracker = (
        ArtifactStore(tmp_path / "store"),
        Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="pruning"),
    )
    parent = open_parent_run(tracker, "end-to-end of demo", Recipe(), "")
    corpus = _build(store, "corpus")
    _build(store, "dataset")
    reused = _build(store, "corpus")
    assert reused.reused
    parent.used(reused)
    in_use = fingerprints_in_use(tracker, since=datetime.now(UTC) - timedelta(days=1))
    assert in_use == {corpus.fingerprint: ("run end-to-end of demo",)}
    assert _prune(store, *in_use) == [("dataset", True)]
