"""The steps of a training run in this process: what it counts going back, and how it gives up."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.local import LocalFileSystem as Local
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from bert_core.batch import Batch
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.guard import GuardConfig
from bert_core.training.optimization import OptimizationConfig, build_optimizer
from bert_core.training.state import Position
from pipelines.config.errors import UserError
from pipelines.stage import Retention
from pipelines.training import training_loop
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.curve import Telemetry
from pipelines.training.ranks import Work
from pipelines.training.saving import TrainState
from pipelines.training.settings import TrainingSettings
from pipelines.training.speed import Speed
from pipelines.training.training_loop import TrainingLoop
from tests.bert_core.batches import pretraining_batch, small_config

NUM_STEPS = 10
IN_A_ROW = 2


class Poisoned(PretrainingModel):
    """Its losses are multiplied at some steps."""

    factors: Mapping[int, float] = {}
    step = 0

    def loss_sums(self, batch: Any, dropout: Any) -> Any:
        factor = self.factors.get(self.step, 1.0)
        sums = super().loss_sums(batch, dropout)
        return {name: each._replace(total=each.total * factor) for name, each in sums.items()}


def loop_that_meets(factors: Mapping[int, float], folder: Path, **settings: Any) -> TrainingLoop:
    torch.manual_seed(0)
    model = Poisoned(small_config())
    model.factors = factors

    def batches(step: int) -> Iterator[tuple[int, Batch]]:
        model.step = step
        yield 0, pretraining_batch(seed=step)

    guard = GuardConfig(max_skipped_in_a_row=IN_A_ROW)
    optimizer = build_optimizer(model, OptimizationConfig(num_steps=NUM_STEPS, guard=guard))
    speed = Speed(NUM_STEPS, num_ranks=1, matrix_rate=1e9)
    state = TrainState(
        model=model,
        optimizer=optimizer,
        telemetry=Telemetry("finetuning from scratch", NUM_STEPS, None, None, speed),
        checkpoints=Checkpoints(str(folder / "work"), LocalFileSystem(), Retention(latest=5)),
        is_writer=True,
        node="here",
    )
    work = Work(
        stage="finetuning from scratch",
        section="finetuning",
        settings=TrainingSettings(
            **{"log_every_steps": 1, "checkpoint_every_steps": 2, **settings},
            max_skipped_steps=IN_A_ROW,
        ),
        num_steps=NUM_STEPS,
        evaluate_every_steps=NUM_STEPS,
        build_model=lambda: Poisoned(small_config()),
        micro_batches=batches,
        batches_of=batches,
        evaluate=lambda model: {},
        final_evaluation=lambda model: {},
    )
    return TrainingLoop(work, state, speed, torch.device("cpu"), "float32", lambda: False, 0.0)


def test_tokens_before_a_way_back_are_counted_and_it_is_no_start(tmp_path: Path) -> None:
    loop = loop_that_meets({5: math.nan, 6: math.nan}, tmp_path)
    end = loop.train_on(Position(seed=0, step=0))
    telemetry = loop.state.telemetry
    assert end.position.given_up == ((4, 6),)
    assert len(telemetry.first_step_seconds) == 1
    taken = [step for step in range(NUM_STEPS) if step != 6]  # the one that ends it tells nothing
    expected = [int(pretraining_batch(seed=step).tokens.num_tokens) for step in taken]
    assert telemetry.num_tokens == sum(expected)


def test_the_advice_names_settings_that_there_are_and_none_that_is_followed(tmp_path: Path) -> None:
    loop = loop_that_meets(dict.fromkeys(range(NUM_STEPS), math.inf), tmp_path, max_rollbacks=1)
    with pytest.raises(UserError) as raised:
        loop.train_on(Position(seed=0, step=0))
    said = str(raised.value)
    assert "lower finetuning.learning_rate, raise finetuning.warmup_fraction, look at" in said
    assert "finetuning from scratch." not in said
    assert "precision=float32" not in said


def test_the_clock_stores_checkpoints_that_a_run_goes_on_from_and_no_way_back_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_loop, "_TIMES_ITS_COST", 0)
    monkeypatch.setattr(training_loop, "_TIMES_ITS_STORING", 0)
    wrong = {5: math.nan, 6: math.nan}
    seldom = {"checkpoint_every_steps": NUM_STEPS}
    alone = loop_that_meets(wrong, tmp_path / "alone", **seldom)
    end = alone.train_on(Position(seed=0, step=0))
    assert end.position.given_up == ((0, 6),)

    loop = loop_that_meets(wrong, tmp_path / "timed", **seldom)
    checkpoints = loop.state.checkpoints
    found: list[tuple[int, bool]] = []

    def look_between_steps() -> bool:
        while checkpoints.is_storing(60.0):
            pass
        if stored := checkpoints.stored():
            found.append((stored[0].step, stored[0].is_regular))
        return False

    timed = replace(loop, checkpoint_seconds=1e-9, wants_stop=look_between_steps)
    assert timed.train_on(Position(seed=0, step=0)) == end
    assert found[0] == (1, False)
    assert (4, False) in found
    assert loop.state.telemetry.history == alone.state.telemetry.history
    ours, theirs = (each.state.optimizer.arena.values for each in (loop, alone))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


class SlowStore(FSSpecHandler):
    """Takes its time with each file."""

    def __init__(self) -> None:
        super().__init__(Local(auto_mkdir=True))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        time.sleep(0.2)
        return super().open_output_stream(path, metadata)


def test_the_clock_asks_a_slow_store_less_often(tmp_path: Path) -> None:
    loop = loop_that_meets({}, tmp_path)
    slow = Checkpoints(str(tmp_path / "slow"), PyFileSystem(SlowStore()), Retention())
    timed = replace(loop, checkpoint_seconds=0.1, state=replace(loop.state, checkpoints=slow))
    now = time.perf_counter()
    assert timed._is_time(now - 1.0, 0.0)
    (tmp_path / "draft").mkdir()
    slow.store(tmp_path / "draft", step=2, is_regular=False, loss=None)
    slow.wait()
    now = time.perf_counter()
    assert not timed._is_time(now - 1.0, 0.0)
    assert timed._is_time(now - 1000.0, 0.0)
