"""Checkpoints: saved while training goes on, stored whole, verified when read, the newest kept."""

import errno
import os
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem as Local
from pyarrow.fs import FileSelector, FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from bert_core.batch import RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel, build_model
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position, load_model, save_model
from bert_core.vocabulary import SPECIAL_TOKENS, WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.store import ArtifactStore, Built, Draft
from pipelines.store.access import scratch_folder
from pipelines.train import checkpoint as saving
from pipelines.train.checkpoint import (
    MODEL_FILES,
    Checkpoint,
    CheckpointFolder,
    Checkpoints,
    DamagedCheckpointError,
    TrainState,
    check_disk_space,
    publish_model,
    restore,
    save,
    save_at_end,
)
from pipelines.train.metrics import EarlyStopping, Telemetry
from tests.bert_core.batches import small_config
from tests.bert_core.ranks import run_ranks
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


def test_the_newest_whole_one_is_opened_whatever_became_of_the_later_ones(
    place, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(saving, "_NUM_KEPT", 10)
    checkpoints = Checkpoints(place)
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

    seen = Checkpoints(place)
    assert [each.step for each in seen.stored()] == [4, 3, 2, 1]
    for step in (4, 3):
        refusal = pytest.raises(DamagedCheckpointError, match="model/weights has another SHA-256")
        with refusal, seen.opened(by_step[step]):
            pass
    with seen.opened(by_step[2]) as opened:
        assert (opened / "model" / "weights").read_text() == "2" * 1000
    # What is incomplete goes once a new one is stored.
    seen.store(draft_of(tmp_path / "again", "7"), step=7)
    seen.wait()
    assert [each.step for each in seen.stored()] == [7, 4, 3, 2, 1]
    assert len(place.filesystem.get_file_info(FileSelector(place.path))) == 5


def test_two_are_kept_and_what_another_writer_stores_at_this_moment(tmp_path: Path):
    folder = tmp_path / "work"
    (folder / "checkpoint_000000001-left").mkdir(parents=True)
    under_way = folder / "checkpoint_000000009-under-way"
    under_way.mkdir()
    checkpoints = Checkpoints(local(folder))
    names = []
    for step in (2, 3, 4):
        checkpoints.store(draft_of(tmp_path / f"draft-{step}", "2"), step=step)
        names.append(checkpoints.wait())
    assert sorted(path.name for path in folder.iterdir()) == [*names[1:], under_way.name]


def test_it_survives_a_power_cut_before_others_are_removed(tmp_path: Path, monkeypatch):
    work = tmp_path / "work"
    monkeypatch.setattr(saving, "_NUM_KEPT", 1)
    checkpoints = Checkpoints(local(work))
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


class Store(FSSpecHandler):
    """Takes nothing until it may, or refuses one write."""

    def __init__(self) -> None:
        super().__init__(Local(auto_mkdir=True))
        self.may = threading.Event()
        self.may.set()
        self.refuses = False

    def open_output_stream(self, path, metadata):
        self.may.wait(240)
        if self.refuses:
            self.refuses = False
            raise OSError(errno.EIO, "the store does not take it")
        return super().open_output_stream(path, metadata)


@pytest.fixture
def scratch(monkeypatch, tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def state_on(folder: Path, filesystem: FileSystem | None = None) -> tuple[TrainState, list[str]]:
    torch.manual_seed(0)
    model = PretrainingModel(small_config())
    warnings: list[str] = []
    telemetry = Telemetry("pretraining", 10)
    telemetry.warn = warnings.append  # type: ignore[method-assign]
    state = TrainState(
        model=model,
        optimizer=build_optimizer(model, OptimizationConfig(num_steps=10)),
        telemetry=telemetry,
        checkpoints=Checkpoints(CheckpointFolder(str(folder), filesystem or LocalFileSystem())),
        is_writer=True,
        first_of_node=0,
    )
    return state, warnings


def at(step: int) -> Position:
    return Position(seed=0, step=step)


def test_one_that_is_due_too_soon_is_left_out_and_the_last_one_waits(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(saving, "PENDING_SAVE_SECONDS", 0.01)
    store = Store()
    state, warnings = state_on(tmp_path / "work", PyFileSystem(store))
    store.may.clear()
    save(state, at(2))
    save(state, at(4))
    assert warnings == [
        "the checkpoint of step 4 is left out: the previous one is still being copied to the store"
    ]
    threading.Timer(0.2, store.may.set).start()
    assert save_at_end(state, at(6)).startswith("checkpoint_000000006-")
    assert [each.step for each in state.checkpoints.stored()] == [6, 2]
    assert list(scratch.iterdir()) == []


def test_one_that_the_store_refuses_is_told_and_the_next_one_is_stored(
    scratch: Path, tmp_path: Path
) -> None:
    store = Store()
    state, warnings = state_on(tmp_path / "work", PyFileSystem(store))
    store.refuses = True
    save(state, at(2))
    save(state, at(4))
    assert warnings == ["a checkpoint could not be stored ([Errno 5] the store does not take it)"]
    save_at_end(state, at(5))
    assert [each.step for each in state.checkpoints.stored()] == [5, 4]
    assert list(scratch.iterdir()) == []


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def broken(*_: object) -> None:
    raise OSError("an answer broke off")


def test_one_that_the_temporary_folder_does_not_take_is_left_out_and_leaves_nothing_behind(
    scratch: Path, tmp_path: Path, monkeypatch
) -> None:
    state, warnings = state_on(tmp_path / "work")
    with monkeypatch.context() as patched:
        patched.setattr(state.telemetry, "save", full)
        save(state, at(2))
    assert warnings == [
        f"the checkpoint of step 2 is left out: the temporary folder {scratch} cannot take it "
        "([Errno 28] no space left)"
    ]
    assert list(scratch.iterdir()) == []
    save(state, at(4))
    state.checkpoints.wait()
    assert [each.step for each in state.checkpoints.stored()] == [4]


@pytest.mark.parametrize(("fault", "raised"), [(full, UserError), (broken, OSError)])
def test_a_last_one_that_is_not_stored_ends_the_run_in_a_sentence(
    scratch: Path, tmp_path: Path, monkeypatch, fault, raised
) -> None:
    """OSError for what may come again with a new worker."""
    state, _ = state_on(tmp_path / "work")
    save(state, at(2))
    monkeypatch.setattr(state.telemetry, "save", fault)
    with pytest.raises((UserError, OSError)) as error:
        save_at_end(state, at(6))
    assert type(error.value) is raised
    reason = "[Errno 28] no space left" if fault is full else "an answer broke off"
    assert str(error.value) == (
        f"the checkpoint of step 6 could not be stored in {tmp_path}/work: {reason}; free some "
        f"space there and in {scratch}, or fix the store, and run again: the training run resumes "
        "from step 2"
    )
    assert list(scratch.iterdir()) == []


def save_from_a_full_disk(rank: int, folder: str) -> tuple[list[str], str]:
    """Of two ranks the writer finds no place for its first checkpoint."""
    state, warnings = state_on(Path(folder))
    state = replace(state, is_writer=rank == 0)
    whole = saving.scratch_folder
    saving.scratch_folder = full
    save(state, at(2))
    saving.scratch_folder = whole
    return warnings, save_at_end(state, at(4))


def test_no_rank_waits_for_a_writer_whose_disk_is_full(tmp_path: Path) -> None:
    first, second = run_ranks(save_from_a_full_disk, 2, str(tmp_path / "work"))
    assert (len(first[0]), len(second[0])) == (1, 0)
    assert first[1] == second[1]
    assert (tmp_path / "work" / first[1] / "checksums.json").is_file()


def test_a_damaged_one_is_passed_over_and_without_any_training_starts_over(
    scratch: Path, tmp_path: Path
) -> None:
    state, warnings = state_on(tmp_path / "work")
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
    assert warnings[-1].startswith(
        "the checkpoint of step 2 is damaged (model/model.safetensors has another SHA-256)"
    )


def restore_on_two_nodes(rank: int, folder: str, first_of_node: list[int]) -> tuple[int, int]:
    """The step that a rank takes up, and how many checkpoints its node opened."""
    state, _ = state_on(Path(folder))
    state = replace(state, is_writer=rank == 0, first_of_node=first_of_node[rank])
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
    ("first_of_node", "expected"), [([0, 0], [(4, 1), (4, 0)]), ([0, 1], [(2, 2), (2, 2)])]
)
def test_ranks_take_up_what_is_whole_on_every_node_and_read_it_once_on_each(
    tmp_path: Path, first_of_node: list[int], expected: list[tuple[int, int]]
) -> None:
    state, _ = state_on(tmp_path / "work")
    for step in (2, 4):
        save(state, at(step))
        state.checkpoints.wait()
    assert run_ranks(restore_on_two_nodes, 2, str(tmp_path / "work"), first_of_node) == expected


def test_a_disk_without_room_for_the_checkpoints_is_refused(tmp_path: Path, monkeypatch):
    state, _ = state_on(tmp_path / "not" / "yet" / "there")
    num_bytes = 4 * sum(parameter.numel() for parameter in state.model.parameters())
    # Two moments beside each model, and the gaps between tensors in memory.
    free = int(1.05 * (4 * 3 * num_bytes + 2 * num_bytes))
    usage = saving.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(saving.shutil, "disk_usage", lambda path: usage._replace(free=free))
    check_disk_space("pretraining", state)
    with_best = replace(state, best=EarlyStopping(patience=1))
    with pytest.raises(UserError, match=r"too full for the checkpoints of pretraining .* are free"):
        check_disk_space("pretraining", with_best)
    # A store elsewhere: the temporary folder alone has to hold one.
    elsewhere, _ = state_on(tmp_path, PyFileSystem(Store()))
    check_disk_space("pretraining", replace(elsewhere, best=EarlyStopping(patience=1)))


def test_published_logits_are_those_of_the_checkpoint_divided_by_the_temperature(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    config = encoder_config("tiny", len(SPECIAL_TOKENS), max_position_embeddings=16)
    model = build_model("sequence_classification", config, num_labels=3)
    save_model(tmp_path / "checkpoint" / "model", model)
    tokenizer = WordPieceTokenizer(list(SPECIAL_TOKENS))
    tokens = RaggedBatch.from_sequences([np.array([2, 1, 3])], [3])

    def logits_at(temperature: float) -> torch.Tensor:
        def build(draft: Draft) -> Built:
            checkpoint = tmp_path / "checkpoint"
            publish_model(draft, checkpoint, tokenizer, {"history": []}, temperature)
            return Built(MODEL_FILES, {})

        made = ArtifactStore(tmp_path / "store").get_or_build(
            "finetuned", version=1, settings={"t": temperature}, inputs={}, build=build
        )
        with torch.inference_mode():
            return load_model(made.local_folder())(tokens)

    with torch.inference_mode():
        expected = load_model(tmp_path / "checkpoint" / "model")(tokens)
    assert torch.equal(logits_at(1.0), expected)
    assert torch.equal(logits_at(4.0), expected / 4)  # a power of two rounds nothing
