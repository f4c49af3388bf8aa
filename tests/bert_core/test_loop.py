"""A run is a function of its arguments: interrupted or not, in one piece or several."""

import pytest
import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import NonFiniteGradientError, train
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.batches import pretraining_batch, small_config

NUM_STEPS = 6


def new_run(**overrides):
    torch.manual_seed(0)
    model = PretrainingModel(small_config())
    settings = {"num_steps": NUM_STEPS, "learning_rate": 1e-3, "warmup_steps": 2, **overrides}
    return model, AdamW(model, OptimizationConfig(**settings))


def micro_batches(step):
    for index in range(2):
        yield index, pretraining_batch(seed=10 * step + index)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_resumed_run_ends_with_the_same_bits_as_one_that_was_never_stopped(tmp_path, precision):
    whole, optimizer = new_run()
    losses = [r.loss for r in train(whole, optimizer, micro_batches, seed=1, precision=precision)]

    first, optimizer = new_run()
    for report in train(first, optimizer, micro_batches, seed=1, precision=precision):
        if report.step == 2:
            save_checkpoint(tmp_path / "step-3", first, optimizer, Position(seed=1, step=3))
            break
    torch.manual_seed(99)
    second, optimizer = new_run()
    position = load_checkpoint(tmp_path / "step-3", second, optimizer)
    assert position == Position(seed=1, step=3)
    resumed = [
        report.loss
        for report in train(
            second, optimizer, micro_batches,
            seed=position.seed, first_step=position.step, precision=precision,
        )
    ]  # fmt: skip

    assert_equal(weights(whole), weights(second))
    assert resumed == losses[3:]


def test_another_seed_drops_other_elements():
    ends = []
    for seed in (1, 2):
        model, optimizer = new_run()
        for _ in train(model, optimizer, micro_batches, seed=seed, num_steps=2):
            pass
        ends.append(weights(model)["encoder.layers.0.attention.to_out.weight"])
    assert not torch.equal(*ends)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_training_on_one_batch_learns_it_by_heart(precision):
    model, optimizer = new_run(num_steps=150, learning_rate=3e-3, warmup_steps=10)
    batch = pretraining_batch(lengths=(12, 20))
    losses = [
        float(report.loss)
        for report in train(
            model, optimizer, lambda step: [(0, batch)], seed=1, precision=precision
        )
    ]
    assert losses[0] > 5.0
    assert losses[-1] < 0.5


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_weights_change():
    model, optimizer = new_run()
    with torch.no_grad():
        model.encoder.embeddings.token_type.fill_(torch.inf)
    before = weights(model)
    with pytest.raises(NonFiniteGradientError, match="gradient of step 0 is not finite"):
        next(train(model, optimizer, micro_batches, seed=1))
    assert_equal(weights(model), before)
    assert optimizer.num_updates == 0
