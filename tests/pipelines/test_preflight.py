"""What the ranks of a training run find out before its first step, and how they say it."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.optimizer import OptimizationConfig
from pipelines.errors import UserError
from pipelines.store import Artifact
from pipelines.train import preflight
from pipelines.train.preflight import check_disk_space, meet, node_memory, within_memory
from tests.bert_core.ranks import run_ranks
from tests.pipelines.small_trainings import SmallJob, train_small

CPU = torch.device("cpu")


def meeting(rank: int, absent: int | None, seconds: float) -> str:
    """What a rank is told; `absent` says nothing until the others have given it up."""
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == absent:
        store.wait(["given up"])
        return "absent"
    told = "well"
    try:
        meet("pretraining", CPU, seconds=seconds)
    except UserError as error:
        told = str(error)
    store.set("given up", "")
    return told


def test_ranks_that_reach_each_other_go_on():
    meet("pretraining", CPU)  # one alone
    assert run_ranks(meeting, 2, None, 60.0) == ["well", "well"]


def test_a_rank_that_does_not_come_ends_the_others_within_the_time():
    told = run_ranks(meeting, 2, 1, 1.0)
    assert told[1] == "absent"
    assert told[0].startswith("the 2 workers of pretraining do not reach each other within 1 s (")


def meeting_with_one_that_dies(rank: int, told: str) -> str:
    if rank == 1:
        os._exit(0)
    try:
        meet("pretraining", CPU, seconds=120.0)
    except (RuntimeError, UserError) as error:
        Path(told).write_text(type(error).__name__)
    return "told"


def test_a_rank_that_dies_while_they_meet_is_no_mistake_of_a_person(tmp_path: Path):
    told = tmp_path / "told"
    with pytest.raises(KeyError):  # who died returns nothing
        run_ranks(meeting_with_one_that_dies, 2, str(told))
    assert told.read_text() == "RuntimeError"


def new_model() -> PretrainingModel:
    return PretrainingModel(encoder_config("tiny", 300), next_sentence=False)


def test_a_disk_without_room_for_the_checkpoints_is_refused(tmp_path: Path, monkeypatch):
    model, config = new_model(), OptimizationConfig(num_steps=9)
    folder = str(tmp_path / "not" / "yet" / "there")
    num_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    free = 4 * 3 * num_bytes + 2 * num_bytes + 4 * num_bytes  # of one disk: two models more in each
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    check_disk_space("pretraining", model, config, folder, None)
    with pytest.raises(UserError, match=r"too full for the checkpoints of pretraining .* are free"):
        check_disk_space("pretraining", model, config, folder, object())  # with the best weights
    # A store elsewhere: the temporary folder alone has to hold one.
    check_disk_space("pretraining", model, config, None, object())


def test_a_lack_of_memory_is_a_sentence_and_another_error_stays_what_it_is(monkeypatch):
    monkeypatch.setattr(preflight, "_limit_to", lambda num_bytes: None)
    with (
        pytest.raises(UserError, match=r"^pretraining does not fit the memory .*; lower micro"),
        within_memory("pretraining", CPU, 1),
    ):
        torch.empty(2**62, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shape"), within_memory("pretraining", CPU, 1):
        torch.zeros(2, 3) @ torch.zeros(2, 3)


def take_much_memory(rank: int, step: int) -> None:
    torch.ones(node_memory() // 4).sum()


@pytest.mark.slow
def test_a_training_that_outgrows_its_node_ends_with_the_sentence(
    local_ray, small_examples: Artifact, tmp_path: Path
):
    job = SmallJob(examples=small_examples, meets=take_much_memory)
    with pytest.raises(UserError, match=r"^pretraining does not fit the memory of its worker"):
        train_small(job, tmp_path)
