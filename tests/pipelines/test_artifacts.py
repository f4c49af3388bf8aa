"""The artifact store keeps its promises: named by what made it, whole or not there, verified."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.artifacts.manifest import canonical_json
from pipelines.config.errors import UserError


@pytest.fixture(params=["local", "remote"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store in a folder with a space in its path, and one on an object store."""
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    if request.param == "local":
        return ArtifactStore(tmp_path / "a store")
    return ArtifactStore(f"memory://{tmp_path.name}/store")


def _write_two(draft: Draft) -> Built:
    for name in ("a.txt", "deeper/b.txt"):
        with draft.file(name) as target:
            target.path.write_text(f"contents of {name}")
            target.figures["letters"] = len(name)
    return Built(["a.txt", "deeper/b.txt"], {"files": 2})


def _build(store: ArtifactStore, build=_write_two, **settings) -> Artifact:
    return store.get_or_build("thing", version=1, settings=settings, inputs={}, build=build)


def test_an_artifact_is_built_once_and_then_found(store: ArtifactStore) -> None:
    def must_not_run(draft: Draft) -> Built:
        raise AssertionError("built twice")

    built = _build(store, rate=0.1)
    found = _build(store, must_not_run, rate=0.1)
    assert (built.reused, found.reused) == (False, True)
    assert found.names() == ["a.txt", "deeper/b.txt"]
    assert found.local("deeper/b.txt").read_text() == "contents of deeper/b.txt"
    assert found.statistics == {"files": 2}
    assert found.manifest.files["a.txt"].figures == {"letters": 5}


def test_the_fingerprint_follows_settings_version_and_inputs(store: ArtifactStore) -> None:
    def fingerprint(version: int, settings: dict, inputs: dict) -> str:
        return store.get_or_build(
            "thing",
            version=version,
            settings=settings,
            inputs=inputs,
            build=lambda draft: Built([], {}),
        ).fingerprint

    same = fingerprint(1, {"a": 1, "b": 2}, {"corpus": "x"})
    assert same == fingerprint(1, {"b": 2, "a": 1}, {"corpus": "x"})
    others = [
        fingerprint(2, {"a": 1, "b": 2}, {"corpus": "x"}),
        fingerprint(1, {"a": 1, "b": 3}, {"corpus": "x"}),
        fingerprint(1, {"a": 1, "b": 2}, {"corpus": "y"}),
    ]
    assert len({same, *others}) == 4


def test_canonical_json_refuses_what_has_no_one_spelling() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"rate": float("nan")})


def test_a_stage_that_fails_publishes_nothing_and_keeps_its_whole_files(
    store: ArtifactStore,
) -> None:
    def fail_in_second(draft: Draft) -> Built:
        with draft.file("a.txt") as target:
            target.path.write_text("whole")
        with draft.file("b.txt") as target:
            target.path.write_text("hal")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        _build(store, fail_in_second)

    def go_on(draft: Draft) -> Built:
        assert draft.finished("a.txt") == {}
        assert draft.finished("b.txt") is None
        with draft.file("b.txt") as target:
            target.path.write_text("whole too")
        return Built(["a.txt", "b.txt"], {})

    artifact = _build(store, go_on)
    assert artifact.names() == ["a.txt", "b.txt"]
    assert artifact.local("a.txt").read_text() == "whole"


def test_a_damaged_file_of_a_draft_is_written_again(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)

    def damage_and_stop(draft: Draft) -> Built:
        with draft.file("a.txt") as target:
            target.path.write_text("right")
        Path(draft.root, "a.txt").write_text("wrong")
        raise RuntimeError("stop")

    def check(draft: Draft) -> Built:
        assert draft.finished("a.txt") is None
        return Built([], {})

    with pytest.raises(RuntimeError, match="stop"):
        _build(store, damage_and_stop)
    _build(store, check)


def test_a_reader_refuses_a_changed_byte_and_names_the_file(tmp_path: Path) -> None:
    artifact = _build(ArtifactStore(tmp_path))
    path = Path(artifact.root, "a.txt")
    path.write_text("Contents of a.txt")  # the same length
    with pytest.raises(
        UserError, match=r"a\.txt is not the file .* \(17 bytes.* run again to rebuild"
    ):
        artifact.local("a.txt")
    path.unlink()
    with pytest.raises(UserError, match="found no file"):
        artifact.local("a.txt")


def test_a_draft_travels_to_other_processes(store: ArtifactStore) -> None:
    def write_through_copy(draft: Draft) -> Built:
        copy = pickle.loads(pickle.dumps(draft))
        with copy.file("a.txt") as target:
            target.path.write_text("from afar")
        return Built(["a.txt"], {})

    assert _build(store, write_through_copy).local("a.txt").read_text() == "from afar"


def test_two_builders_of_one_artifact_take_turns(tmp_path: Path) -> None:
    store, builds = ArtifactStore(tmp_path), []

    def build(draft: Draft) -> Built:
        builds.append(threading.get_ident())
        return _write_two(draft)

    threads = [threading.Thread(target=_build, args=(store, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def _die_in_the_middle(draft: Draft) -> Built:
    with draft.file("a.txt") as target:
        target.path.write_text("whole")
    with draft.file("b.txt") as target:
        target.path.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody survives that")


def test_a_builder_killed_in_the_middle_leaves_no_artifact_and_its_whole_files(
    tmp_path: Path,
) -> None:
    program = (
        "import sys\n"
        "from tests.pipelines.test_artifacts import ArtifactStore, _build, _die_in_the_middle\n"
        "_build(ArtifactStore(sys.argv[1]), _die_in_the_middle)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.rglob("manifest.json"))

    def go_on(draft: Draft) -> Built:
        assert draft.finished("a.txt") == {}
        with draft.file("b.txt") as target:
            target.path.write_text("whole")
        return Built(["a.txt", "b.txt"], {})

    artifact = _build(ArtifactStore(tmp_path), go_on)
    names = sorted(path.name for path in Path(artifact.root).iterdir())
    assert names == ["a.txt", "b.txt", "manifest.json"]


def test_a_store_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="the store cannot be written"):
        _build(ArtifactStore(tmp_path / "file"))


def test_the_cache_of_remote_files_stays_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTSMITH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BERTSMITH_CACHE_BYTES", "2500")

    def write_three(draft: Draft) -> Built:
        for index in range(3):
            with draft.file(f"{index}.bin") as target:
                target.path.write_bytes(bytes([index]) * 1000)
        return Built([f"{index}.bin" for index in range(3)], {})

    artifact = _build(ArtifactStore(f"memory://{tmp_path.name}/bounded"), write_three)
    for name in artifact.names():
        assert artifact.local(name).stat().st_size == 1000
    cached = sum(path.stat().st_size for path in (tmp_path / "cache/files").iterdir())
    assert cached == 2000


_KILLED_WHILE_WRITING = """
import os
from pipelines.artifacts import ArtifactStore

def build(draft):
    with draft.file("a.txt") as file:
        file.path.write_text("half of it")
        os._exit(1)

ArtifactStore("memory://killed").get_or_build(
    "thing", version=1, settings={}, inputs={}, build=build)
"""


def test_what_a_killed_builder_left_in_the_temporary_folder_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    environment = {**os.environ, "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING], env=environment, check=False)
    assert [path.name for path in folder.rglob("a.txt")] == ["a.txt"]
    _build(ArtifactStore(f"memory://{tmp_path.name}/store"))
    assert not list(folder.iterdir())
