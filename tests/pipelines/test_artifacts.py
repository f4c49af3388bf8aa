"""The artifact store keeps its promises: named by what made it, whole or not there, verified."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipelines.errors import UserError
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from pipelines.store.artifact import check_file_name
from pipelines.store.pruning import take_inventory


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


def test_a_reader_refuses_a_changed_byte_and_names_the_file(tmp_path: Path) -> None:
    artifact = _build(ArtifactStore(tmp_path))
    path = Path(artifact.root, "a.txt")
    path.write_text("Contents of a.txt")  # the same length
    with pytest.raises(
        UserError, match=r"a\.txt is missing, or not the file .* \(17 bytes.* to rebuild"
    ):
        artifact.local("a.txt")
    path.unlink()
    with pytest.raises(UserError, match=r"a\.txt is missing, or not the file"):
        artifact.local("a.txt")


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


def test_a_builder_killed_in_the_middle_leaves_no_artifact_and_its_whole_files(
    tmp_path: Path,
) -> None:
    program = (
        "import os, signal, sys\n"
        "from tests.pipelines.test_artifacts import ArtifactStore, _build\n"
        "def die(draft):\n"
        "    draft.write('a.txt', b'whole')\n"
        "    with draft.file('b.txt') as target:\n"
        "        target.path.write_text('half')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "_build(ArtifactStore(sys.argv[1]), die)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.rglob("manifest.json"))

    def go_on(draft: Draft) -> Built:
        assert draft.finished("a.txt") == {}
        draft.write("b.txt", b"whole")
        return Built(["a.txt", "b.txt"], {})

    artifact = _build(ArtifactStore(tmp_path), go_on)
    names = sorted(path.name for path in Path(artifact.root).iterdir())
    assert names == ["a.txt", "b.txt", "manifest.json"]


def test_what_other_code_began_starts_over_and_is_left_for_prune(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(version: str) -> bool:
        """Whether a build by this version finds the file of the one before."""
        monkeypatch.setattr("pipelines.store.store.code_version", lambda: version)
        there = []

        def stop(draft: Draft) -> Built:
            there.append(draft.finished("a.txt") is not None)
            draft.write("a.txt", b"whole")
            raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            _build(store, stop)
        return there[0]

    assert [interrupted(version) for version in "1122"] == [False, True, False, True]
    (leftover,) = take_inventory(store)
    assert leftover.manifest is None
    assert len([path for path in leftover.files if path.endswith("a.txt")]) == 1


def test_a_crash_before_the_manifest_leaves_a_draft_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(path: Path, text: str) -> None:
        raise KeyboardInterrupt

    store = ArtifactStore(tmp_path)
    with monkeypatch.context() as context:
        context.setattr("pipelines.store.store.write_to_disk", crash)
        with pytest.raises(KeyboardInterrupt):
            _build(store)
    assert not list(tmp_path.rglob("manifest.json"))

    def go_on(draft: Draft) -> Built:
        assert draft.finished("a.txt") is not None
        return Built(["a.txt"], {})

    artifact = _build(store, go_on)
    # What an earlier build had written and this one does not name is not published.
    names = sorted(path.name for path in Path(artifact.root).rglob("*") if path.is_file())
    assert names == ["a.txt", "manifest.json"]
    assert not list((tmp_path / "thing").glob(".work*"))


def test_everything_is_on_the_disk_before_the_manifest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(descriptor: int) -> None:
        events.append(("on disk", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def note_replace(self: Path, target: Path) -> Path:
        events.append((f"there is {Path(target).name}", self.stat().st_ino))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    root = Path(_build(ArtifactStore(tmp_path)).root)
    manifest = root / "manifest.json"
    published = events.index((f"there is {manifest.name}", manifest.stat().st_ino))
    before = {inode for event, inode in events[:published] if event == "on disk"}
    for path in (root.parent, root, *root.rglob("*")):
        assert path.stat().st_ino in before, path
    assert ("on disk", root.stat().st_ino) in events[published:]


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", "./a", "a\\b", "C:a", "a\0"])
def test_names_that_leave_their_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be relative"):
        check_file_name(name)


@pytest.mark.parametrize("url", ["s3://bucket/a*", "s3://bucket/run?1", "memory://a/[project]"])
def test_a_store_whose_name_is_a_pattern_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"one of \* \? \[ in its name"):
        ArtifactStore(url)


def test_a_local_store_may_have_any_name(tmp_path: Path) -> None:
    """Brackets are no pattern there, and a `bucket` in its path says nothing about S3."""
    store = ArtifactStore(tmp_path / "my bucket [project]")
    assert store.find("thing", "0" * 32) is None
    assert _build(store).local("a.txt").read_text() == "contents of a.txt"
