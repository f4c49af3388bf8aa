"""A step that was not taken is never saved as taken."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bert_core.batch import PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import NonFiniteGradientError
from bert_core.training.step import optimizer_step
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.training import worker
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import Work, run

CHECKPOINT_STEP = 4


class Poisoned(PretrainingModel):
    """Its losses become infinite at one step, as an overflow would make them."""

    step = 0

    def loss_sums(self, batch: PretrainingBatch, dropout: Any) -> Any:
        sums = super().loss_sums(batch, dropout)
        self.step += 1
        if self.step == CHECKPOINT_STEP:
            sums = {
                name: each._replace(total=each.total * torch.inf) for name, each in sums.items()
            }
        return sums


def as_on_a_gpu(model, optimizer, batches, *, seed, first_step, num_steps, device, precision):
    """The loop where the host does not wait: a step is handed over before anybody looked at it."""
    for step in range(first_step, num_steps):
        yield optimizer_step(model, optimizer, list(batches(step)), seed=seed, step=step)


def test_a_step_that_was_left_out_is_not_in_a_checkpoint(small_examples, monkeypatch):
    reader = ExampleReader(small_examples, "train")
    saved: list[int] = []
    context = SimpleNamespace(
        get_world_rank=lambda: 0, get_world_size=lambda: 1, get_local_world_size=lambda: 1
    )
    ray_train = SimpleNamespace(
        get_context=lambda: context,
        get_checkpoint=lambda: None,
        report=lambda metrics, checkpoint: saved.append(metrics["step"]),
        torch=SimpleNamespace(get_device=lambda: torch.device("cpu")),
    )
    monkeypatch.setattr(worker.ray, "train", ray_train)
    monkeypatch.setattr(worker, "ProgressSender", lambda queue: None)
    monkeypatch.setattr(worker, "train", as_on_a_gpu)

    def batches_of(step):
        return micro_batches(reader, seed=0, step=step, examples_per_step=4, micro_batch_examples=4)

    work = Work(
        stage="poisoned",
        settings=TrainingSettings(checkpoint_every_steps=2, log_every_steps=1, dropout=0.0),
        num_steps=8,
        evaluate_every_steps=8,
        build_model=lambda: Poisoned(encoder_config("tiny", reader.vocab_size)),
        micro_batches=batches_of,
        batches_of=batches_of,
        evaluate=lambda model: {},
        judge=lambda model: {},
    )
    values = {"num_threads": 1, "precision": "float32", "run_id": None, "progress": None}
    values |= {"shard_optimizer_state": False, "checkpointed_layers": 0}
    with pytest.raises(NonFiniteGradientError, match=f"step {CHECKPOINT_STEP - 1} is not finite"):
        run(work, values)
    assert saved == [2]
