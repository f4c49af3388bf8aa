"""The average of the weights: exact, beside the weights, and gone when the block ends."""

import pytest
import torch

from bert_core.training.loop import evaluate
from tests.bert_core.batches import pretraining_batch
from tests.bert_core.test_loop import new_run


def updated(optimizer, step):
    torch.manual_seed(step)
    optimizer.arena.gradients.normal_()
    optimizer.update(0.05)
    return optimizer.arena.values.double()


def test_it_is_the_plain_mean_at_first_and_exponential_then():
    _, optimizer = new_run(averaging_decay=0.9)
    expected = torch.zeros_like(optimizer.arena.values, dtype=torch.float64)
    for step in range(50):
        decay = min(0.9, 1 - 1 / (step + 1))
        expected = decay * expected + (1 - decay) * updated(optimizer, step)
        if step == 4:
            plain = expected.clone()
            with optimizer.averaged():
                first = optimizer.arena.values.double()
    torch.testing.assert_close(first, plain, atol=1e-6, rtol=0)
    with optimizer.averaged():
        torch.testing.assert_close(optimizer.arena.values.double(), expected, atol=1e-6, rtol=0)


def test_the_block_gives_the_weights_back_also_after_an_error():
    model, optimizer = new_run(averaging_decay=0.9)
    for step in range(3):
        updated(optimizer, step)
    before, batch = optimizer.arena.values.clone(), pretraining_batch()
    plain = evaluate(model, [batch])
    with pytest.raises(KeyError), optimizer.averaged():
        assert evaluate(model, [batch]) != plain
        raise KeyError
    assert torch.equal(optimizer.arena.values, before)
    assert evaluate(model, [batch]) == plain


def test_without_an_average_the_block_has_the_weights_themselves():
    for settings in ({}, {"averaging_decay": 0.9}):  # and before the first update
        _, optimizer = new_run(**settings)
        before = optimizer.arena.values.clone()
        with optimizer.averaged():
            assert torch.equal(optimizer.arena.values, before)
