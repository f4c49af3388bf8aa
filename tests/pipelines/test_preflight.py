"""What the ranks of a training run find out before its first step, and how they say it."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bert_core.training.state import Position
from pipelines.config.errors import UserError
from pipelines.training import worker
from pipelines.training.curve import Best
from pipelines.training.preflight import check_disk_space, check_ranks_agree, within_memory
from pipelines.training.saving import save
from tests.bert_core.ranks import run_ranks
from tests.pipelines.test_training_loop import loop_that_meets

CPU = torch.device("cpu")
MEBIBYTE = 2**20


def meeting(rank: int, settings: list[str], absent: int | None, seconds: float) -> str:
    """What a rank is told; `absent` says nothing until the others have given it up."""
    if rank == absent:
        torch.distributed.distributed_c10d._get_default_store().wait(["given up"])
        return "absent"
    told = "well"
    try:
        check_ranks_agree("pretraining", CPU, f"10.0.0.{rank}", settings[rank], seconds=seconds)
    except UserError as error:
        told = str(error)
    if absent is not None and rank == 0:
        torch.distributed.distributed_c10d._get_default_store().set("given up", "")
    return told


def test_ranks_that_are_alike_go_on():
    assert run_ranks(meeting, 2, ["same", "same"], None, 60.0) == ["well", "well"]


def test_a_rank_that_was_told_something_else_ends_all_of_them():
    told = run_ranks(meeting, 3, ["same", "same", "other"], None, 60.0)
    assert len(set(told)) == 1
    assert told[0].startswith("the workers of pretraining differ: settings ")
    assert "on rank 2 (10.0.0.2)" in told[0]
    assert "on rank 0 (10.0.0.0)" in told[0]


def test_a_rank_that_does_not_come_is_named_within_the_time():
    told = run_ranks(meeting, 2, ["same", "same"], 1, 1.0)
    assert told[1] == "absent"
    assert told[0].startswith("the 2 workers of pretraining do not reach each other within 1 s: ")
    assert "1 s: rank 1 did not come (here: rank 0 on 10.0.0.0)" in told[0]


def meeting_with_one_that_dies(rank: int, told: str) -> str:
    """Rank 1 comes, and its process ends before its numbers are there."""
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["preflight/0"])
        os._exit(0)
    try:
        check_ranks_agree("pretraining", CPU, "10.0.0.0", "same", seconds=120.0)
    except (RuntimeError, UserError) as error:
        Path(told).write_text(type(error).__name__)
    return "told"


def test_a_rank_that_dies_while_they_meet_is_no_mistake_of_a_person(tmp_path: Path):
    told = tmp_path / "told"
    with pytest.raises(KeyError):  # who died returns nothing
        run_ranks(meeting_with_one_that_dies, 2, str(told))
    assert told.read_text() == "RuntimeError"


def test_one_rank_alone_meets_nobody():
    check_ranks_agree("pretraining", CPU, "here", "settings")


def test_a_disk_without_room_for_the_checkpoints_is_refused(tmp_path: Path):
    free = shutil.disk_usage(tmp_path).free
    folder = str(tmp_path / "not" / "yet" / "there")
    check_disk_space("pretraining", MEBIBYTE, MEBIBYTE, folder)
    check_disk_space("pretraining", MEBIBYTE, MEBIBYTE, None)
    with pytest.raises(UserError, match=r"is too full for the checkpoints of pretraining"):
        check_disk_space("pretraining", free // 3, MEBIBYTE, folder)
    # A store elsewhere: the temporary folder alone has to hold one.
    with pytest.raises(UserError, match=r"GiB are free; free some, choose another runtime.store"):
        check_disk_space("pretraining", 2**60, 0, None)


@pytest.mark.parametrize("patience", [None, 2])
def test_the_disk_is_asked_for_as_much_as_a_checkpoint_takes(
    tmp_path: Path, monkeypatch, patience: int | None
):
    asked: list[int] = []
    monkeypatch.setattr(worker, "check_disk_space", lambda *told: asked.append(told[1]))
    loop = loop_that_meets({}, tmp_path)
    best = None if patience is None else Best(patience)
    state = replace(loop.state, best=best)
    if best is not None:
        best.consider(state.model, [{"step": 2, "eval/loss": 1.0}])
    values = {"checkpoints": ["", None], "checkpoint_folder": None}
    worker._prepare_first_step(loop.work, state, values)
    assert save(state, Position(seed=0, step=2), is_last=False)
    state.checkpoints.wait()
    (stored,) = state.checkpoints.stored()
    assert asked == [pytest.approx(stored.num_bytes, rel=0.2)]  # a third model is more


def test_a_lack_of_memory_is_a_sentence_and_another_error_stays_what_it_is():
    with (
        pytest.raises(UserError, match=r"^the model does not fit the memory .*; lower size$"),
        within_memory("the model", "lower size", CPU, 1),
    ):
        torch.empty(2**62, dtype=torch.uint8)
    with (
        pytest.raises(RuntimeError, match="shape"),
        within_memory("the model", "lower size", CPU, 1),
    ):
        torch.zeros(2, 3) @ torch.zeros(2, 3)
