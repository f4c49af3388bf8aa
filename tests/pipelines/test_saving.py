"""A checkpoint that is due while the one before is on its way, one that fails, and the last."""

import errno
import tempfile
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem as Local
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem
from torch.distributed.distributed_c10d import _set_pg_timeout

from bert_core.model.catalogue import PretrainingModel
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position
from pipelines.errors import UserError
from pipelines.train import saving
from pipelines.train.checkpoints import CheckpointFolder, Checkpoints, DamagedCheckpointError
from pipelines.train.metrics import Speed, Telemetry
from pipelines.train.saving import TrainState, restore, save, save_at_end
from tests.bert_core.batches import small_config
from tests.bert_core.ranks import run_ranks


class Store(FSSpecHandler):
    """Takes nothing until it may, or refuses so many writes."""

    def __init__(self) -> None:
        super().__init__(Local(auto_mkdir=True))
        self.may = threading.Event()
        self.may.set()
        self.num_refusals, self.number = 0, errno.EIO

    def open_output_stream(self, path, metadata):
        self.may.wait(240)
        if self.num_refusals:
            self.num_refusals -= 1
            raise OSError(self.number, "the store does not take it")
        return super().open_output_stream(path, metadata)


@pytest.fixture
def scratch(monkeypatch, tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def state_on(
    folder: Path, filesystem: FileSystem, **optimization: Any
) -> tuple[TrainState, list[str]]:
    torch.manual_seed(0)
    model = PretrainingModel(small_config())
    optimizer = build_optimizer(model, OptimizationConfig(num_steps=10, **optimization))
    said: list[str] = []
    telemetry = Telemetry("pretraining", 10, Speed(num_ranks=1, matrix_rate=1e9))
    telemetry.warn = said.append  # type: ignore[method-assign]
    checkpoints = Checkpoints(CheckpointFolder(str(folder), filesystem), num_kept=5)
    state = TrainState(
        model=model, optimizer=optimizer, telemetry=telemetry, checkpoints=checkpoints,
        is_writer=True, node="here",
    )  # fmt: skip
    return state, said


def at(step: int) -> Position:
    return Position(seed=0, step=step)


def test_one_that_is_due_too_soon_is_left_out_and_the_last_one_waits(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(saving, "PATIENCE_SECONDS", 0.01)
    store = Store()
    state, said = state_on(tmp_path / "work", PyFileSystem(store))
    store.may.clear()
    assert save(state, at(2), is_last=False)
    assert not save(state, at(4), is_last=False)
    assert said == [
        "the checkpoint of step 4 is left out: the previous one is still being copied to the store"
    ]
    threading.Timer(0.2, store.may.set).start()
    assert save(state, at(6), is_last=True)
    assert save_at_end(state, at(6), is_last=True, is_saved=True).startswith("checkpoint_")
    assert [each.step for each in state.checkpoints.stored()] == [6, 2]
    assert list(scratch.iterdir()) == []


def save_to_a_slow_store(rank: int, folder: str) -> str:
    """Two ranks that give up a message after four seconds; the store takes seven."""
    saving._POLL_SECONDS = 0.2
    store = Store()
    state, _ = state_on(Path(folder), PyFileSystem(store))
    torch.distributed.barrier()  # what each imports first takes as long as it takes
    _set_pg_timeout(timedelta(seconds=4))
    if rank == 0:
        store.may.clear()
        threading.Timer(7, store.may.set).start()
    state = replace(state, is_writer=rank == 0)
    save(state, at(2), is_last=True)
    return save_at_end(state, at(2), is_last=True, is_saved=True)


def test_ranks_wait_for_the_last_one_longer_than_for_any_message(tmp_path: Path) -> None:
    first, second = run_ranks(save_to_a_slow_store, 2, str(tmp_path / "work"))
    assert first == second
    assert (tmp_path / "work" / first / "checksums.json").is_file()


def test_a_due_one_that_the_store_refused_is_stored_again_by_a_stop(
    scratch: Path, tmp_path: Path
) -> None:
    store = Store()
    state, said = state_on(tmp_path / "work", PyFileSystem(store))
    store.num_refusals = 1
    save(state, at(4), is_last=False)
    save_at_end(state, at(4), is_last=False, is_saved=True)
    (stored,) = state.checkpoints.stored()
    assert stored.step == 4
    assert "could not be stored" in said[0]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def broken(*_: object) -> None:
    raise OSError("an answer broke off")


def test_one_that_the_temporary_folder_does_not_take_is_left_out_and_leaves_nothing_behind(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    state, said = state_on(tmp_path / "work", LocalFileSystem())
    with monkeypatch.context() as patched:
        patched.setattr(state.telemetry, "save", full)
        assert not save(state, at(2), is_last=False)
    assert said == [
        f"the checkpoint of step 2 is left out: the temporary folder {scratch} cannot take it "
        "([Errno 28] no space left)"
    ]
    assert list(scratch.iterdir()) == []
    assert save(state, at(4), is_last=False)
    assert save_at_end(state, at(4), is_last=False, is_saved=True)
    assert [each.step for each in state.checkpoints.stored()] == [4]


def test_a_last_one_that_a_full_disk_refuses_ends_the_run_at_once_in_a_sentence(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    state, said = state_on(tmp_path / "work", LocalFileSystem())
    save(state, at(2), is_last=False)
    monkeypatch.setattr(state.telemetry, "save", full)
    with pytest.raises(UserError) as raised:
        save_at_end(state, at(6), is_last=True, is_saved=False)
    assert str(raised.value) == (
        f"the checkpoint of step 6 could not be stored in {tmp_path}/work: [Errno 28] no space "
        f"left; free some space there and in {scratch}, or fix the store, and run again: the "
        "training run resumes from step 2"
    )
    assert len(said) == 1  # it is not tried again


def test_a_last_one_that_gets_no_answer_is_tried_again_before_the_worker_is_replaced(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    state, said = state_on(tmp_path / "work", LocalFileSystem())
    monkeypatch.setattr(state.telemetry, "save", broken)
    with pytest.raises(OSError, match=r"step 2 could not be stored .*: an answer broke off"):
        save_at_end(state, at(2), is_last=True, is_saved=False)
    assert len(said) == 3


def save_from_a_full_disk(rank: int, folder: str) -> tuple[list[bool], list[str]]:
    """Of two ranks the writer finds no place for its first checkpoint."""
    state, said = state_on(Path(folder), LocalFileSystem(), averaging_decay=0.5)
    state = replace(state, is_writer=rank == 0)
    whole = saving.scratch_folder
    saving.scratch_folder = full
    are_saved = [save(state, at(2), is_last=True)]
    saving.scratch_folder = whole
    are_saved.append(save(state, at(4), is_last=True))
    save_at_end(state, at(4), is_last=True, is_saved=True)
    return are_saved, said


def test_no_rank_waits_for_a_writer_whose_disk_is_full(tmp_path: Path) -> None:
    for are_saved, said in run_ranks(save_from_a_full_disk, 2, str(tmp_path / "work")):
        assert are_saved == [False, True]
        assert len(said) == 1


def test_a_damaged_one_is_passed_over_and_without_any_training_starts_over(
    scratch: Path, tmp_path: Path
) -> None:
    state, said = state_on(tmp_path / "work", LocalFileSystem())
    for step in (2, 4):
        save(state, at(step))
        state.checkpoints.wait()
    for step in (4, 2):
        assert restore(state, 0) == at(step)
        (weights,) = (tmp_path / "work").glob(
            f"checkpoint_00000000{step}-*/model/model.safetensors"
        )
        weights.write_bytes(b"")
    assert restore(state, 0) == at(0)
    assert said[-1].startswith("the checkpoint of step 2 is damaged (model/model.safetensors has 0")


def restore_on_two_nodes(rank: int, folder: str, nodes: list[str]) -> tuple[int, int]:
    """The step that a rank takes up, and how many checkpoints its node opened."""
    state, _ = state_on(Path(folder), LocalFileSystem())
    state = replace(state, is_writer=rank == 0, node=nodes[rank])
    opened: list[object] = []
    whole = state.checkpoints.opened

    def counted(checkpoint: Any) -> Any:
        opened.append(checkpoint)
        if rank == 1 and checkpoint.step == 4:
            raise DamagedCheckpointError("weights has another SHA-256")
        return whole(checkpoint)

    state.checkpoints.opened = counted  # type: ignore[method-assign]
    return restore(state, 0).step, len(opened)


@pytest.mark.parametrize(
    ("nodes", "expected"), [(["one", "one"], [(4, 1), (4, 0)]), (["one", "two"], [(2, 2), (2, 2)])]
)
def test_ranks_take_up_what_is_whole_on_every_node_and_read_it_once_on_each(
    tmp_path: Path, nodes: list[str], expected: list[tuple[int, int]]
) -> None:
    state, _ = state_on(tmp_path / "work", LocalFileSystem())
    for step in (2, 4):
        save(state, at(step))
        state.checkpoints.wait()
    assert run_ranks(restore_on_two_nodes, 2, str(tmp_path / "work"), nodes) == expected
