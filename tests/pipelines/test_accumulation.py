"""Gradient accumulation to any global batch: a ragged last micro-batch adds up exactly, too."""

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import optimizer_step
from bert_core.training.optimization import build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from pipelines.stages.examples.batches import ExampleReader, micro_batches


def stepped(reader: ExampleReader, micro_batch_size: int):
    """A step of 50 examples on one worker, and its gradient."""
    batches = list(
        micro_batches(
            reader, seed=0, step=2, global_batch_size=50, micro_batch_size=micro_batch_size
        )
    )
    torch.manual_seed(0)
    config = encoder_config(
        "tiny", reader.vocab_size, hidden_dropout=0.0, attention_dropout=0.0,
        max_position_embeddings=reader.max_tokens,
    )  # fmt: skip
    model = PretrainingModel(config)
    optimizer = build_optimizer(model, OptimizationConfig(num_steps=1, max_grad_norm=None))
    report = optimizer_step(model, optimizer, batches, seed=0, step=0)
    return [batch.tokens.num_sequences for _, batch in batches], report


@pytest.mark.parametrize(("size", "sizes"), [(16, [16, 16, 16, 2]), (7, [7] * 7 + [1])])
def test_a_step_is_the_same_however_it_is_cut(small_examples, size, sizes):
    reader = ExampleReader(small_examples, "train")
    _, whole = stepped(reader, 50)
    found, cut = stepped(reader, size)
    assert found == sizes
    assert int(cut.num_tokens) == int(whole.num_tokens)
    for name, loss in whole.losses.items():
        assert float(cut.losses[name]) == pytest.approx(float(loss), rel=1e-5)
    assert float(cut.grad_norm) == pytest.approx(float(whole.grad_norm), rel=1e-4)


def test_a_step_of_thousands_is_more_than_the_examples_there_are(small_examples):
    reader = ExampleReader(small_examples, "train")
    batches = dict(
        micro_batches(reader, seed=0, step=1, global_batch_size=4096, micro_batch_size=16)
    )
    assert sorted(batches) == list(range(256))
    assert {batch.tokens.num_sequences for batch in batches.values()} == {16}
    assert len(reader) < 4096  # several epochs in one step
