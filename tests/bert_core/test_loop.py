"""A run is a function of its arguments: interrupted or not, in one piece or several."""

import pytest
import torch

from bert_core.model.catalogue import PretrainingModel
from bert_core.model.preparation import freeze
from bert_core.training import loop
from bert_core.training.guard import GuardConfig, SkippedStepsError
from bert_core.training.loop import train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import Position, load_checkpoint, save_checkpoint
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.ranks import run_ranks

NUM_STEPS = 6
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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


@pytest.mark.parametrize(("num_each", "num_steps"), [(1, 8), (3, 3), (8, 1), (20, 1)])
def test_freed_memory_is_kept_after_eight_micro_batches_in_however_few_steps(
    monkeypatch, num_each, num_steps
):
    kept = []
    monkeypatch.setattr(loop, "keep_freed_memory", lambda: kept.append(True))
    batches = [(index, pretraining_batch(seed=index)) for index in range(num_each)]
    model, optimizer = new_run(num_steps=10)
    kept_after = [
        len(kept) for _ in train(model, optimizer, lambda step: batches, seed=0, first_step=1)
    ]
    assert kept_after == [0] * (num_steps - 1) + [1] * (10 - num_steps)


ONE_IS_ENOUGH = GuardConfig(max_skipped_in_a_row=1)


def test_a_halted_training_is_not_saved_and_goes_on_once_a_state_is_loaded(tmp_path):
    model, optimizer = new_run(guard=ONE_IS_ENOUGH)
    save_checkpoint(tmp_path / "good", model, optimizer, Position(seed=1, step=0))
    # As on a GPU, whose host has not looked yet.
    nan = torch.tensor(torch.nan)
    assert optimizer.guard.should_skip(700, nan, nan)
    assert optimizer.guard.should_skip(701, torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(SkippedStepsError, match="loss of step 700 is not finite"):
        save_checkpoint(tmp_path / "bad", model, optimizer, Position(seed=1, step=1))
    assert [path.name for path in tmp_path.iterdir()] == ["good"]
    with pytest.raises(SkippedStepsError, match="loss of step 700"):
        next(train(model, optimizer, micro_batches, seed=1))
    load_checkpoint(tmp_path / "good", model, optimizer)
    before = weights(model)
    assert next(train(model, optimizer, micro_batches, seed=1)).is_taken
    assert any(not torch.equal(before[name], tensor) for name, tensor in weights(model).items())


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_is_asked_every_eighth_step_alone():
    torch.manual_seed(0)
    model = PretrainingModel(small_config()).to("cuda")
    optimizer = AdamW(model, OptimizationConfig(num_steps=40))
    steps = train(model, optimizer, micro_batches, seed=1, wants_stop=lambda: True)
    next(steps)  # whatever is allocated once
    torch.cuda.set_sync_debug_mode("error")
    try:
        reports = [next(steps) for _ in range(6)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(bool(report.is_taken) for report in reports)
    assert [report.step for report in steps] == [7]


@pytest.mark.gpu
@needs_gpu
def test_equal_seeds_give_equal_dropout_on_a_gpu():
    losses = []
    for _ in range(2):
        torch.manual_seed(0)
        model = PretrainingModel(small_config(hidden_dropout=0.3)).to("cuda")
        optimizer = AdamW(model, OptimizationConfig(num_steps=3))
        steps = train(model, optimizer, micro_batches, seed=1)
        losses.append([float(report.loss) for report in steps])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def ranks_with_other_weights(rank):
    torch.manual_seed(rank)
    model = PretrainingModel(small_config())
    freeze(model, layers=1)
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    for _ in train(model, optimizer, lambda step: [(rank, pretraining_batch(seed=rank))], seed=0):
        pass
    return {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_ranks_start_with_the_weights_of_the_first():
    first, second = run_ranks(ranks_with_other_weights, 2)
    assert first == second
    frozen = "encoder.layers.0.attention.to_out.weight"
    assert first[frozen] == new_run()[0].state_dict()[frozen].tolist()
