"""The steps of a training run in this process: what it counts going back, and how it gives up."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow.fs import LocalFileSystem

from bert_core.batch import Batch
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.guard import GuardConfig
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer_settings import OptimizationConfig
from bert_core.training.state import Position
from pipelines.config.errors import UserError
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
        checkpoints=Checkpoints(str(folder / "work"), LocalFileSystem(), num_kept=5),
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


def test_too_many_skipped_steps_end_the_run_with_the_section_of_its_settings(
    tmp_path: Path,
) -> None:
    loop = loop_that_meets(dict.fromkeys(range(NUM_STEPS), math.inf), tmp_path)
    with pytest.raises(UserError) as raised:
        loop.train_on(Position(seed=0, step=0))
    assert "lower the learning rate" in str(raised.value)
    assert "(finetuning has learning_rate, warmup_fraction, precision and" in str(raised.value)
    assert [each["step"] for each in loop.state.telemetry.skipped] == list(range(IN_A_ROW))
