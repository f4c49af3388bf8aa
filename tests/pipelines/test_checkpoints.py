"""Checkpoints: stored whole, verified, kept by the rule; a damaged one is passed over."""

import io
import os
import tempfile
from pathlib import Path

import fsspec
import pytest
import torch
from pyarrow import PythonFile
from pyarrow.fs import FileSelector, FSSpecHandler, LocalFileSystem, PyFileSystem

from pipelines.artifacts.scratch import scratch_folder
from pipelines.config.errors import UserError
from pipelines.training.checkpoint_files import Checkpoint
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.restoring import newest_whole
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
    checkpoints = Checkpoints(*place, num_kept=10)
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

    found = Checkpoints(*place, num_kept=10)
    with newest_whole(found, CPU, node="here", is_writer=True) as opened:
        assert opened is not None
        assert (opened / "model" / "weights").read_text() == "2" * 1000
    said = " ".join(found.damage)
    assert "step 4 is damaged (model/weights has 999 bytes of 1000)" in said
    assert "step 3 is damaged (model/weights has another SHA-256)" in said
    refusal = pytest.raises(UserError, match="is damaged: model/weights")
    with refusal, Checkpoints(*place).named(by_step[4].name):
        pass
    # The next one takes what is damaged or incomplete away.
    found.store(draft_of(tmp_path / "again", "4"), step=4, is_regular=False, loss=None)
    found.wait()
    assert [each.step for each in found.stored()] == [4, 2, 1]
    assert len(place[1].get_file_info(FileSelector(place[0]))) == 3
    for only_regular, step in ((False, 4), (True, 2)):
        with newest_whole(
            found, CPU, node="here", is_writer=True, only_regular=only_regular
        ) as opened:
            assert opened is not None
            assert (opened / "model" / "weights").read_text() == str(step) * 1000


def test_what_another_writer_stores_at_this_moment_stays_and_what_one_left_goes(tmp_path: Path):
    folder = tmp_path / "work"
    left = folder / "checkpoint_000000001-left"
    left.mkdir(parents=True)
    checkpoints = Checkpoints(str(folder), LocalFileSystem(), num_kept=1)
    assert checkpoints.stored() == []  # where a training run looks for what to go on from
    under_way = folder / "checkpoint_000000003-under-way"
    under_way.mkdir()
    checkpoints.store(draft_of(tmp_path / "draft", "2"), step=2, is_regular=True, loss=None)
    own = checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == sorted([own, under_way.name])


def test_nothing_is_there_before_anything_is_stored(place):
    checkpoints = Checkpoints(*place)
    assert checkpoints.stored() == []
    assert checkpoints.wait() == ""
    with newest_whole(checkpoints, CPU, node="here", is_writer=True) as opened:
        assert opened is None


def test_a_store_that_does_not_take_it_is_told_when_it_is_waited_for(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    checkpoints = Checkpoints(str(tmp_path / "file" / "work"), LocalFileSystem())
    draft = draft_of(tmp_path / "draft", "1")
    checkpoints.store(draft, step=1, is_regular=True, loss=None)
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


# Of two ranks: their nodes, and how many of each one's readings break off.
READINGS = {
    "a copy breaks off": (["one", "two"], [0, 1]),
    "of a node": (["one", "one"], [0, 0]),
    "one node alone reads damage": (["10.0.0.1 (a)", "10.0.0.2 (b)"], [0, 99]),
    "no node reads it whole": (["one", "two"], [99, 99]),
}


def take_up_each(rank: int, folder: str) -> list[tuple[object, ...]]:
    return [restore(rank, f"{folder}/{case}", *READINGS[case]) for case in READINGS]


def restore(rank: int, folder: str, nodes: list[str], num_torn: list[int]) -> tuple[object, ...]:
    """What ranks on these nodes take up: step, text, how often it was read, folder; or why not."""
    store = TornCopies(num_torn[rank])
    checkpoints = Checkpoints(folder, PyFileSystem(store))
    try:
        with newest_whole(checkpoints, CPU, node=nodes[rank], is_writer=rank == 0) as opened:
            assert opened is not None
            assert folder not in str(opened)
            text = (opened / "model" / "weights").read_text()
    except UserError as error:
        return (str(error),)
    assert rank or not opened.exists()  # who made it removes it
    return int(text[0]), text[:3], store.num_read, str(opened)


@pytest.fixture(scope="module")
def taken_up(tmp_path_factory) -> dict[str, tuple[tuple[object, ...], ...]]:
    """What each of two ranks took up, by the reading; all in one pair of processes."""
    folder = tmp_path_factory.mktemp("two stored")
    before = {}
    for case in READINGS:
        checkpoints = Checkpoints(str(folder / case), LocalFileSystem(), num_kept=10)
        for step in (1, 2):
            draft = draft_of(folder / "draft" / f"{step}", str(step))
            checkpoints.store(draft, step=step, is_regular=True, loss=None)
            checkpoints.wait()
        before[case] = sorted((folder / case).rglob("*"))
    ranks = run_ranks(take_up_each, 2, str(folder))
    assert all(sorted((folder / case).rglob("*")) == files for case, files in before.items())
    return dict(zip(READINGS, zip(*ranks, strict=True), strict=True))


def test_a_copy_that_breaks_off_is_made_again(taken_up):
    first, second = taken_up["a copy breaks off"]
    assert (first[:3], second[:3]) == ((2, "222", 1), (2, "222", 2))
    assert first[3] != second[3]


def test_ranks_of_a_node_read_one_copy(taken_up):
    first, second = taken_up["of a node"]
    assert (first[:3], second[:3]) == ((2, "222", 1), (2, "222", 0))
    assert first[3] == second[3]


def test_a_node_that_alone_reads_damage_ends_the_training_and_nothing_is_lost(taken_up):
    first, second = taken_up["one node alone reads damage"]
    assert first == second
    assert str(first[0]).startswith(
        "the checkpoint of step 2 is damaged on some nodes only: model/weights has 4 bytes of "
        "1000 on 10.0.0.2 (b); it is whole on the others; "
    )


def test_one_that_no_node_reads_whole_is_passed_over(taken_up):
    first, second = taken_up["no node reads it whole"]
    assert (first[:3], second[:3]) == ((1, "111", 2), (1, "111", 2))


def test_where_none_is_whole_what_there_is_outlives_a_new_beginning(place, tmp_path: Path):
    checkpoints = Checkpoints(*place, num_kept=1)
    checkpoints.store(draft_of(tmp_path / "one", "1"), step=9, is_regular=True, loss=None)
    name = checkpoints.wait()
    (stored,) = checkpoints.stored()
    damage(place, stored, "model/weights", b"x")
    for attempt in ("two", "three"):  # the second one begins in a new process
        anew = Checkpoints(*place, num_kept=1)
        with newest_whole(anew, CPU, node="here", is_writer=True) as opened:
            assert (opened is None) == (attempt == "two")
        anew.store(draft_of(tmp_path / attempt, "2"), step=2, is_regular=True, loss=None)
        newest = anew.wait()
    folder, filesystem = place
    entries = filesystem.get_file_info(FileSelector(folder))
    assert sorted(entry.base_name for entry in entries) == sorted([f"damaged-{name}", newest])
    with filesystem.open_input_file(f"{folder}/damaged-{name}/model/weights") as file:
        assert file.read() == b"x"


def test_it_survives_a_power_cut_before_others_are_removed(tmp_path: Path, monkeypatch):
    work = tmp_path / "work"
    checkpoints = Checkpoints(str(work), LocalFileSystem(), num_kept=1)
    checkpoints.store(draft_of(tmp_path / "one", "1"), step=1, is_regular=True, loss=None)
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
    checkpoints.store(draft_of(tmp_path / "two", "2"), step=2, is_regular=True, loss=None)
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
