"""What a crash, a power cut or a hand leaves in a local store: it is named or mended."""

import logging
import os
from pathlib import Path

import pytest

from pipelines.artifacts import Artifact, ArtifactStore, Built, Draft
from pipelines.artifacts.manifest import check_file_name


def _write(draft: Draft) -> Built:
    for name in ("a.txt", "deeper/b.txt"):
        with draft.file(name) as file:
            file.path.write_text(f"contents of {name}")
    return Built(["a.txt", "deeper/b.txt"], {})


def _build(store: ArtifactStore, build=_write) -> Artifact:
    return store.get_or_build("thing", version=1, settings={}, inputs={}, build=build)


def _files(folder: str) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("leave", "said"),
    [
        (lambda root: (root / "manifest.json").unlink(), "has no manifest: set aside"),
        (lambda root: (root / "manifest.json").write_text(""), "has a damaged manifest"),
        (lambda root: (root / "manifest.json").write_text('{"kind": "th'), "damaged manifest"),
    ],
    ids=["none", "empty", "cut off"],
)
def test_a_folder_without_a_readable_manifest_is_set_aside_and_built_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, leave, said: str
) -> None:
    store = ArtifactStore(tmp_path)
    root = Path(_build(store).root)
    leave(root)
    (root / "of mine.txt").write_text("not to be lost")
    with caplog.at_level(logging.WARNING):
        artifact = _build(store)
    assert not artifact.reused
    assert said in caplog.text
    assert _files(artifact.root) == ["a.txt", "deeper/b.txt", "manifest.json"]
    (aside,) = root.parent.glob(".aside-*")
    assert (aside / "of mine.txt").read_text() == "not to be lost"


def test_a_file_in_an_artifacts_place_is_set_aside(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    root = Path(_build(ArtifactStore(tmp_path / "elsewhere")).root)
    place = tmp_path / "thing" / root.name
    place.parent.mkdir()
    place.write_text("a file")
    assert not _build(store).reused


def test_a_crash_between_manifest_and_rename_leaves_a_draft_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    store = ArtifactStore(tmp_path)
    with monkeypatch.context() as context:
        context.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            _build(store)
    (draft,) = (tmp_path / "thing").glob(".draft-*")
    assert (draft / "manifest.json").exists()

    def go_on(draft: Draft) -> Built:
        assert draft.finished("a.txt") is not None
        return Built(["a.txt"], {})

    artifact = _build(store, go_on)
    # What an earlier attempt had written and this one does not name is not published.
    assert _files(artifact.root) == ["a.txt", "manifest.json"]
    assert not list((tmp_path / "thing").glob(".[dw]*"))


def test_a_crash_between_rename_and_clean_up_leaves_an_artifact_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(filesystem: object, path: str) -> None:
        raise KeyboardInterrupt

    store = ArtifactStore(tmp_path)
    with monkeypatch.context() as context:
        context.setattr("pipelines.artifacts.store.remove", crash)
        with pytest.raises(KeyboardInterrupt):
            _build(store)
    artifact = _build(store)
    assert artifact.reused
    assert artifact.local("a.txt").read_text() == "contents of a.txt"


def test_everything_is_on_the_disk_before_the_rename_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor: int) -> None:
        events.append(("on disk", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def note_rename(self: Path, target: Path) -> Path:
        events.append(("renamed", self.stat().st_ino))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    root = Path(_build(ArtifactStore(tmp_path)).root)
    renamed = events.index(("renamed", root.stat().st_ino))
    before = {inode for event, inode in events[:renamed] if event == "on disk"}
    for path in (root, *root.rglob("*")):
        assert path.stat().st_ino in before, path
    assert ("on disk", root.parent.stat().st_ino) in events[renamed:]


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", "./a", "a\\b", "C:a", "a\0"])
def test_names_that_leave_their_folder_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be relative"):
        check_file_name(name)
