"""`bertsmith store` and `bertsmith store prune`, on a home of a few small artifacts."""

from pathlib import Path

import pytest

from flows.cli.app import MISTAKE, run
from pipelines.stage import open_tracker
from pipelines.store import Artifact, ArtifactStore, Built, Draft


def _build(home: Path, kind: str, **inputs: Artifact) -> Artifact:
    def write(draft: Draft) -> Built:
        with draft.file("a.txt") as file:
            file.path.write_text("a" * 2048)
        return Built(["a.txt"], {})

    store = ArtifactStore(home / "store")
    return store.get_or_build(kind, version=1, settings={}, inputs=inputs, build=write)


def test_the_store_is_listed_and_pruned_only_when_asked(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = _build(own_home, "corpus")
    encoder = _build(own_home, "encoder", corpus=corpus)
    from pipelines.settings import RuntimeSettings
    from pipelines.tracking.tracker import FINGERPRINT_TAG

    client = open_tracker(RuntimeSettings(home=str(own_home))).client()
    client.create_registered_model("model")
    tags = {FINGERPRINT_TAG: encoder.fingerprint}
    client.create_model_version("model", source=str(own_home), tags=tags)
    _build(own_home, "task", corpus=corpus)
    assert run(["store"]) == 0
    listed = capsys.readouterr().out
    assert f"encoder {encoder.fingerprint[:8]}" in listed
    assert "model/1" in listed

    assert run(["store", "prune", "--days", "0"]) == 0
    said = capsys.readouterr().out
    assert "task" in said
    assert "the same command with --yes removes it" in said
    assert list((own_home / "store" / "task").glob("*/manifest.json"))
    places = ["--home", str(own_home), "--store", f"{own_home}/store"]
    command = ["store", "prune", *places, "--days", "0"]
    assert run([*command, "--yes"]) == 0
    assert "freed" in capsys.readouterr().out
    assert not list((own_home / "store" / "task").glob("*/manifest.json"))
    assert ArtifactStore(own_home / "store").find("corpus", corpus.fingerprint) == corpus
    assert run(["store", "prune"]) == 0
    assert "Nothing to remove." in capsys.readouterr().out


def test_nothing_is_pruned_beside_a_registry_that_knows_no_model(
    own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = _build(own_home, "encoder")
    mistyped = own_home / "mlfow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{mistyped}")
    assert run(["store"]) == 0
    assert str(mistyped) in capsys.readouterr().out
    for command in (["store", "prune", "--days", "0"], ["store", "prune", "--days", "0", "--yes"]):
        assert run(command) == MISTAKE
        told = capsys.readouterr().err
        assert f"{mistyped} has no models" in told
        assert "--without-models" in told
    assert not mistyped.exists()  # whoever only reads creates no database
    assert ArtifactStore(own_home / "store").find("encoder", encoder.fingerprint) == encoder
    assert run(["store", "prune", "--days", "0", "--without-models", "--yes"]) == 0
    assert ArtifactStore(own_home / "store").find("encoder", encoder.fingerprint) is None


def test_no_secret_of_store_or_registry_is_printed(
    own_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own_home.mkdir()
    tracker = f"sqlite:///{own_home / 'mlflow.db'}?password=hidden"  # SQLite ignores it
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker)
    store = "memory://key:hidden@bucket/store"
    for command in (["store"], ["store", "prune"]):
        assert run([*command, "--store", store]) == 0
        said = capsys.readouterr()
        assert "bucket/store" in said.out
        assert "hidden" not in said.out + said.err
