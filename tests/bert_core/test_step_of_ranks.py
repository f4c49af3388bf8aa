"""A step that ranks share is the step that one of them would take alone."""

import pytest
import torch

from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.step import optimizer_step
from tests.bert_core.batches import pretraining_batch
from tests.bert_core.ranks import run_ranks
from tests.bert_core.test_gradient_exchange import exchange_of, new_model


def one_step(rank, dtype):
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    optimizer.exchange = exchange_of(model, optimizer.arena)  # many buckets
    mine = [(rank, pretraining_batch(seed=rank)), (rank + 2, pretraining_batch(seed=rank + 2))]
    report = optimizer_step(model, optimizer, mine, seed=0, step=0, dtype=dtype)
    return float(report.grad_norm), optimizer.arena.values.tolist()


def test_a_step_of_two_ranks_is_a_step_of_one():
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    batches = [(index, pretraining_batch(seed=index)) for index in range(4)]
    report = optimizer_step(model, optimizer, batches, seed=0, step=0, dtype=torch.bfloat16)
    first, second = run_ranks(one_step, 2, torch.bfloat16)
    assert first == second
    assert first[0] == pytest.approx(float(report.grad_norm), rel=1e-3)
