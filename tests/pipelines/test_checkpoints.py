"""Checkpoints: stored whole, verified when they are opened, the newest kept."""

import io
import os
import tempfile
from pathlib import Path

import fsspec
import pytest
from pyarrow import PythonFile
from pyarrow.fs import FileSelector, FSSpecHandler, LocalFileSystem, PyFileSystem

from pipelines.store.access import scratch_folder
from pipelines.train.checkpoints import (
    Checkpoint,
    CheckpointFolder,
    Checkpoints,
    DamagedCheckpointError,
)
from tests.integration.object_stores import BUCKET, s3_server


def local(folder: Path) -> CheckpointFolder:
    return CheckpointFolder(str(folder), LocalFileSystem())


def draft_of(folder: Path, text: str) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_text(text * 1000)
    (folder / "telemetry.json").write_text("{}")
    return folder


@pytest.fixture(params=["a folder", "s3"])
def place(request, monkeypatch, tmp_path: Path):
    """A path and its file system."""
    if request.param == "a folder":
        yield CheckpointFolder(str(tmp_path / "a store" / "work"), LocalFileSystem())
        return
    with s3_server(monkeypatch):
        filesystem = fsspec.filesystem("s3", use_listings_cache=False)
        yield CheckpointFolder(f"{BUCKET}/a store/work", PyFileSystem(FSSpecHandler(filesystem)))


def damage(place, checkpoint: Checkpoint, name: str, data: bytes | None) -> None:
    """Write other bytes over a file of a checkpoint, or remove it."""
    folder, filesystem = place
    path = f"{folder}/{checkpoint.name}/{name}"
    if data is None:
        filesystem.delete_file(path)
        return
    with filesystem.open_output_stream(path) as file:
        file.write(data)


def test_the_newest_whole_one_is_opened_whatever_became_of_the_later_ones(place, tmp_path: Path):
    checkpoints = Checkpoints(place, num_kept=10)
    for step in range(1, 7):
        draft = draft_of(tmp_path / f"draft-{step}", str(step))
        checkpoints.store(draft, step=step)
        assert checkpoints.wait().startswith(f"checkpoint_{step:09d}-")
        assert not draft.exists()
    by_step = {each.step: each for each in checkpoints.stored()}
    damage(place, by_step[6], "checksums.json", None)  # its writer was killed
    damage(place, by_step[5], "checksums.json", b'{"step"')
    damage(place, by_step[4], "model/weights", b"4" * 999)  # truncated
    damage(place, by_step[3], "model/weights", b"4" + b"3" * 999)  # one flipped

    found = Checkpoints(place, num_kept=10)
    assert [each.step for each in found.stored()] == [4, 3, 2, 1]
    for step, fault in ((4, "has 999 bytes of 1000"), (3, "has another SHA-256")):
        refusal = pytest.raises(DamagedCheckpointError, match=f"model/weights {fault}")
        with refusal, found.opened(by_step[step]):
            pass
    with found.opened(by_step[2]) as opened:
        assert (opened / "model" / "weights").read_text() == "2" * 1000
    # What is incomplete goes once a new one is stored.
    found.store(draft_of(tmp_path / "again", "7"), step=7)
    found.wait()
    assert [each.step for each in found.stored()] == [7, 4, 3, 2, 1]
    assert len(place.filesystem.get_file_info(FileSelector(place.path))) == 5


def test_what_another_writer_stores_at_this_moment_stays_and_what_one_left_goes(tmp_path: Path):
    folder = tmp_path / "work"
    left = folder / "checkpoint_000000001-left"
    left.mkdir(parents=True)
    checkpoints = Checkpoints(local(folder), num_kept=1)
    assert checkpoints.stored() == []  # where a training run looks for what to go on from
    under_way = folder / "checkpoint_000000003-under-way"
    under_way.mkdir()
    checkpoints.store(draft_of(tmp_path / "draft", "2"), step=2)
    own = checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == sorted([own, under_way.name])


def test_a_store_that_does_not_take_it_is_told_when_it_is_waited_for(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(local(tmp_path / "file" / "work"))
    draft = draft_of(tmp_path / "draft", "1")
    checkpoints.store(draft, step=1)
    with pytest.raises(OSError, match="file"):
        checkpoints.wait()
    assert not draft.exists()


class TornCopies(FSSpecHandler):
    """A store of which the first so many readings of the newest weights break off."""

    def __init__(self, num_torn: int) -> None:
        super().__init__(fsspec.filesystem("file"))
        self.num_torn, self.num_read = num_torn, 0

    def open_input_stream(self, path):
        return self.open_input_file(path)

    def open_input_file(self, path):
        if "checkpoint_000000002" in path and path.endswith("weights"):
            self.num_read += 1
            if self.num_read <= self.num_torn:
                return PythonFile(io.BytesIO(b"torn"), mode="r")
        return super().open_input_file(path)


@pytest.mark.parametrize("num_torn", [0, 1, 2])
def test_a_copy_that_breaks_off_is_made_again_and_no_second_time(tmp_path: Path, num_torn: int):
    stored = Checkpoints(local(tmp_path / "work"))
    stored.store(draft_of(tmp_path / "draft", "2"), step=2)
    stored.wait()
    store = TornCopies(num_torn)
    far = Checkpoints(CheckpointFolder(str(tmp_path / "work"), PyFileSystem(store)))
    (checkpoint,) = far.stored()
    if num_torn == 2:
        with pytest.raises(DamagedCheckpointError), far.opened(checkpoint):
            pass
        return
    with far.opened(checkpoint) as opened:
        assert (opened / "model" / "weights").read_text() == "2" * 1000
        assert store.num_read == 1 + num_torn
    assert not opened.exists()


def test_it_survives_a_power_cut_before_others_are_removed(tmp_path: Path, monkeypatch):
    work = tmp_path / "work"
    checkpoints = Checkpoints(local(work), num_kept=1)
    checkpoints.store(draft_of(tmp_path / "one", "1"), step=1)
    old = checkpoints.wait()
    flushed: list[tuple[str, bool]] = []  # what was forced to the disk, and if the last file was
    force = os.fsync

    def noting(descriptor: int) -> None:
        assert (work / old / "checksums.json").exists()
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        is_there = any(each.parent.name != old for each in work.glob("*/checksums.json"))
        flushed.append((path.relative_to(work).as_posix(), is_there))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    checkpoints.store(draft_of(tmp_path / "two", "2"), step=2)
    new = checkpoints.wait()
    assert not (work / old).exists()
    before = [path for path, is_there in flushed if not is_there]
    assert {f"{new}/model/weights", f"{new}/telemetry.json", f"{new}/model", new} < set(before)
    assert [path for path, is_there in flushed if is_there] == [new, "."]


def test_what_a_killed_process_left_of_a_checkpoint_is_removed_after_a_day(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, mine = scratch_folder(), scratch_folder()
    os.utime(killed, (0, 0))
    (foreign := tmp_path / "of another program").mkdir()
    os.utime(foreign, (0, 0))
    another = scratch_folder()
    assert sorted(tmp_path.iterdir()) == sorted([mine, foreign, another])
