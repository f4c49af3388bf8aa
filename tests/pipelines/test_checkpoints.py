"""Checkpoints: stored whole, verified, kept by the rule; a damaged one is passed over."""

import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import pytest
import torch
from pyarrow.fs import FileSelector, FSSpecHandler, LocalFileSystem, PyFileSystem

from pipelines.core.cluster.ranks import Keeping
from pipelines.core.errors import UserError
from pipelines.training import checkpoints as checkpoints_module
from pipelines.training.checkpoints import Checkpoint, Checkpoints, kept_by
from pipelines.training.choosing import newest_whole
from pipelines.training.scratch import remove_abandoned, scratch_folder
from tests.bert_core.ranks import run_ranks
from tests.integration.object_stores import BUCKET, s3_server

CPU = torch.device("cpu")


def draft_of(folder: Path, text: str) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_text(text * 1000)
    (folder / "telemetry.json").write_text("{}")
    return folder


@pytest.fixture(params=["a folder", "s3"])
def place(request, monkeypatch, tmp_path: Path):
    """A path and its file system."""
    if request.param == "a folder":
        yield str(tmp_path / "a store" / "work"), LocalFileSystem()
        return
    with s3_server(monkeypatch):
        filesystem = fsspec.filesystem("s3", use_listings_cache=False)
        yield f"{BUCKET}/a store/work", PyFileSystem(FSSpecHandler(filesystem))


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
    checkpoints = Checkpoints(*place, Keeping(latest=10))
    for step in range(1, 7):
        draft = draft_of(tmp_path / f"draft-{step}", str(step))
        checkpoints.store(draft, step=step, is_regular=True, loss=None)
        assert checkpoints.wait().startswith(f"checkpoint_{step:09d}-")
        assert not draft.exists()
    by_step = {each.step: each for each in checkpoints.stored()}
    damage(place, by_step[6], "checksums.json", None)  # its writer was killed
    damage(place, by_step[5], "checksums.json", b'{"step"')
    damage(place, by_step[4], "model/weights", b"4" * 999)  # truncated
    damage(place, by_step[3], "model/weights", b"4" + b"3" * 999)  # one flipped

    found = Checkpoints(*place, Keeping(latest=10))
    with newest_whole(found, CPU, is_writer=True) as opened:
        assert opened is not None
        assert opened.checkpoint.step == 2
        assert (opened.folder / "model" / "weights").read_text() == "2" * 1000
    said = " ".join(found.damage)
    assert "step 4 is damaged (model/weights has 999 bytes of 1000)" in said
    assert "step 3 is damaged (model/weights has another SHA-256)" in said
    refusal = pytest.raises(UserError, match="must be as it was stored, found that model/weights")
    with refusal, Checkpoints(*place, Keeping()).named(by_step[4].name):
        pass
    # The next one takes what is damaged or incomplete away.
    found.store(draft_of(tmp_path / "again", "4"), step=4, is_regular=False, loss=None)
    found.wait()
    assert [each.step for each in found.stored()] == [4, 2, 1]
    assert len(place[1].get_file_info(FileSelector(place[0]))) == 3
    for only_regular, step in ((False, 4), (True, 2)):
        with newest_whole(found, CPU, is_writer=True, only_regular=only_regular) as opened:
            assert opened is not None
            assert opened.checkpoint.step == step


def test_what_another_writer_stores_at_this_moment_stays_and_what_one_left_goes(tmp_path: Path):
    folder = tmp_path / "work"
    left = folder / "checkpoint_000000001-left"
    left.mkdir(parents=True)
    checkpoints = Checkpoints(str(folder), LocalFileSystem(), Keeping(latest=1))
    assert checkpoints.stored() == []  # where a training looks for what to go on from
    under_way = folder / "checkpoint_000000003-under-way"
    under_way.mkdir()
    checkpoints.store(draft_of(tmp_path / "draft", "2"), step=2, is_regular=True, loss=None)
    own = checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == sorted([own, under_way.name])


def test_nothing_is_there_before_anything_is_stored(place):
    checkpoints = Checkpoints(*place, Keeping())
    assert checkpoints.stored() == []
    assert checkpoints.wait() == ""
    with newest_whole(checkpoints, CPU, is_writer=True) as opened:
        assert opened is None


def test_a_store_that_does_not_take_it_is_told_when_it_is_waited_for(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(str(tmp_path / "file" / "work"), LocalFileSystem(), Keeping())
    draft = draft_of(tmp_path / "draft", "1")
    checkpoints.store(draft, step=1, is_regular=True, loss=None)
    with pytest.raises(OSError, match="file"):
        checkpoints.wait()
    assert not draft.exists()


def test_the_latest_the_best_and_each_so_many_steps_are_kept_and_the_newest_always():
    losses = {10: 5.0, 20: 3.0, 30: None, 40: 4.0, 50: float("nan"), 60: 6.0, 70: 1.0}
    stored = [
        Checkpoint(name=f"{step}", step=step, is_regular=step != 70, loss=loss, files={})
        for step, loss in losses.items()
    ]

    def kept(**rule) -> list[int]:
        return [each.step for each in kept_by(Keeping(**rule), stored)]

    assert kept(latest=1) == [70, 60]  # where a way back leads to stays beside what a stop left
    assert kept(latest=3) == [70, 60, 50, 40]
    assert kept(latest=1, best=2) == [70, 60, 40, 20]
    assert kept(latest=1, every_steps=30) == [70, 60, 30]


def take_up_a_torn_copy(rank: int, folder: str) -> tuple[int | None, list[str], str]:
    """Two ranks of nodes of their own; the copy of the newest one is torn on the way to rank 1."""
    remote = PyFileSystem(FSSpecHandler(fsspec.filesystem("file")))
    checkpoints = Checkpoints(folder, remote, Keeping())
    whole = checkpoints_module.copy_files

    def torn(source: str, target: str, **more) -> None:
        whole(source, target, **more)
        if rank == 1 and "checkpoint_000000002" in source:
            (Path(target) / "model" / "weights").write_text("torn")

    checkpoints_module.copy_files = torn
    with newest_whole(checkpoints, CPU, is_writer=rank == 0) as opened:
        assert opened is not None
        assert folder not in str(opened.folder)
        text = (opened.folder / "model" / "weights").read_text()
    assert not opened.folder.exists()
    return opened.checkpoint.step, checkpoints.damage, text[:3]


def test_ranks_take_up_the_one_before_where_a_copy_of_one_of_them_is_not_whole(tmp_path: Path):
    folder = str(tmp_path / "work")
    checkpoints = Checkpoints(folder, LocalFileSystem(), Keeping(latest=10))
    for step in (1, 2):
        draft = draft_of(tmp_path / f"draft-{step}", str(step))
        checkpoints.store(draft, step=step, is_regular=True, loss=None)
        checkpoints.wait()
    (first, first_damage, first_text), (second, second_damage, second_text) = run_ranks(
        take_up_a_torn_copy, 2, folder
    )
    assert first == second == 1
    assert first_text == second_text == "111"
    assert first_damage == ["the checkpoint of step 2 is damaged (as rank 1 read it)"]
    assert second_damage == [
        "the checkpoint of step 2 is damaged (model/weights has 4 bytes of 1000)"
    ]


def test_what_a_killed_process_left_of_a_checkpoint_is_removed_and_no_other(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from pipelines.training.scratch import scratch_folder; print(scratch_folder())"
    killed = Path(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
    mine, foreign = scratch_folder(), tmp_path / "bertsmith-checkpoint-elsewhere-1-1-x"
    foreign.mkdir()
    killed = killed.rename(tmp_path / killed.name)
    remove_abandoned()
    assert sorted(tmp_path.iterdir()) == sorted([mine, foreign])
    assert not killed.exists()
