"""What a store holds is told, and what nothing stands on can go; what lives never does."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows.reporting.publishing import open_parent_run
from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.artifacts.inventory import take_inventory
from pipelines.artifacts.pruning import carry_out, plan
from pipelines.recipes.models import CorpusRecipe
from pipelines.registry.find import fingerprints_in_use
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


def _prune(store: ArtifactStore, *in_use: str, now: datetime = LATER) -> list[tuple[str, str]]:
    removals = plan(take_inventory(store), in_use, now=now, days=30)
    return sorted((each.paths.kind, each.what) for each in carry_out(store, removals))


def test_the_inventory_says_what_stands_on_what(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")
    vocabulary = _build(store, "vocabulary", corpus=corpus)
    found = {each.paths.kind: each for each in take_inventory(store).artifacts}
    assert found["corpus"].used_by == (vocabulary.fingerprint,)
    assert found["vocabulary"].used_by == ()
    assert found["corpus"].num_bytes > 100
    assert found["corpus"].manifest == corpus.manifest


def test_what_is_used_stays_with_all_that_made_it(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")
    vocabulary = _build(store, "vocabulary", corpus=corpus)
    encoder = _build(store, "encoder", vocabulary=vocabulary)
    _build(store, "dataset", corpus=corpus)
    gone = [(kind, what) for kind, what in _prune(store, encoder.fingerprint) if what != "lock"]
    assert gone == [("dataset", "artifact")]
    for artifact in (corpus, vocabulary, encoder):
        assert store.find(artifact.kind, artifact.fingerprint) is not None
    gone = [kind for kind, what in _prune(store) if what == "artifact"]
    assert gone == ["corpus", "encoder", "vocabulary"]
    assert not take_inventory(store).artifacts
    assert not [path for path in store.filesystem.find(store.root) if "lock" not in path]


def test_what_is_young_stays(store: ArtifactStore) -> None:
    _build(store, "corpus")
    assert _prune(store, now=datetime.now(UTC)) == []


def test_an_interrupted_build_can_go_on_until_it_is_old(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")

    def stop(draft: Draft) -> Built:
        _write(draft)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        _build(store, "vocabulary", stop, corpus=corpus)
    assert _prune(store, now=datetime.now(UTC)) == []
    gone = _prune(store)
    assert ("corpus", "artifact") in gone
    assert ("vocabulary", "work") in gone
    assert not store.filesystem.find(f"{store.root}/vocabulary")


def test_what_a_live_builder_holds_or_reads_is_never_removed(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")
    removed = []

    def prune_meanwhile(draft: Draft) -> Built:
        built = _write(draft)
        removed.extend(what for _, what in _prune(store) if what != "lock")
        return built

    vocabulary = _build(store, "vocabulary", prune_meanwhile, corpus=corpus)
    assert removed == []
    assert vocabulary.local("a.txt").read_text() == "a" * 100
    assert store.find("corpus", corpus.fingerprint) is not None


def test_a_builder_that_comes_after_the_plan_keeps_its_work(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = _build(store, "corpus")
    removals = plan(take_inventory(store), (), now=LATER, days=30)
    program = (
        "import sys; from filelock import FileLock\n"
        "with FileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    lock = tmp_path / "corpus" / f".lock-{artifact.fingerprint}"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert carry_out(store, removals) == []
    assert store.find("corpus", artifact.fingerprint) is not None
    assert len(carry_out(store, removals)) == 2  # the artifact and its lock
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_was_set_aside_and_files_of_no_artifact_go_when_old(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    artifact = _build(store, "corpus")
    Path(artifact.root, "manifest.json").write_text("")
    _build(store, "corpus")
    Path(artifact.root, "note.txt").write_text("of nobody")
    gone = _prune(store, artifact.fingerprint)
    assert gone == [("corpus", "aside"), ("corpus", "files of no artifact"), ("corpus", "lock")]
    assert sorted(path.name for path in Path(artifact.root).iterdir()) == ["a.txt", "manifest.json"]


def test_models_and_recent_runs_stand_on_the_fingerprints_in_their_tags(tmp_path: Path) -> None:
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="pruning")
    encoder, corpus, classifier = "e" * 32, "c" * 32, "f" * 32
    tracker.create_run("pretraining", encoder, {}, {})
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
    assert fingerprints_in_use(tracker, since=LATER) == models


def test_what_a_recent_run_found_there_is_not_removed(tmp_path: Path) -> None:
    store, tracker = (
        ArtifactStore(tmp_path / "store"),
        Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="pruning"),
    )
    parent = open_parent_run(tracker, "end-to-end of demo", CorpusRecipe(), "")
    corpus = _build(store, "corpus")
    _build(store, "dataset")
    reused = _build(store, "corpus")
    assert reused.reused
    parent.used("corpus", reused)
    in_use = fingerprints_in_use(tracker, since=datetime.now(UTC) - timedelta(days=1))
    assert in_use == {corpus.fingerprint: ("run end-to-end of demo",)}
    assert [kind for kind, what in _prune(store, *in_use) if what == "artifact"] == ["dataset"]


def test_what_a_builder_reads_that_comes_after_the_plan_stays(store: ArtifactStore) -> None:
    corpus = _build(store, "corpus")
    removals = plan(take_inventory(store), (), now=LATER, days=30)

    def prune_meanwhile(draft: Draft) -> Built:
        assert "artifact" not in {each.what for each in carry_out(store, removals)}
        corpus.local("a.txt")
        return _write(draft)

    _build(store, "vocabulary", prune_meanwhile, corpus=corpus)
    assert "artifact" in {each.what for each in carry_out(store, removals)}
    assert store.find("corpus", corpus.fingerprint) is None
