"""Two ranks of a machine add up in shared memory what gloo would add, to the bit."""

import gc
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bert_core.training import neighbours
from bert_core.training.neighbours import Neighbour
from bert_core.training.optimization import AdamW, OptimizationConfig
from bert_core.training.step import optimizer_step, step_gradients
from tests.bert_core.batches import pretraining_batch
from tests.bert_core.optimizer_runs import new_model
from tests.bert_core.ranks import run_ranks

if not hasattr(os, "memfd_create"):
    pytest.skip("memory of two processes is Linux's here", allow_module_level=True)


def gradients_of(rank, optimizer, model):
    batches = [(rank, pretraining_batch(seed=rank))]
    step_gradients(model, optimizer, batches, seed=0, step=1, dtype=torch.float32)
    return optimizer.arena.gradients.clone()


def both_ways(rank):
    """Gradients of a step in shared memory, and over gloo; whether the first were shared."""
    found = []
    for is_shared in (True, False):
        torch.manual_seed(0)
        model = new_model()
        optimizer = AdamW(model, OptimizationConfig(num_steps=4))
        if not is_shared:
            optimizer.arena.shared = None
        found.append(gradients_of(rank, optimizer, model))
        has_neighbour = isinstance(optimizer.exchange, Neighbour)
        assert has_neighbour == is_shared
    return torch.equal(*found), bool(found[0].any())


def test_the_sum_is_gloos_to_the_bit():
    assert run_ranks(both_ways, 2) == [(True, True)] * 2


def several_steps(rank):
    """Weights after some steps, in which one rank is slow now and then."""
    torch.manual_seed(0)
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=20, learning_rate=1e-2))
    for step in range(20):
        batches = [(number, pretraining_batch(seed=10 * step + number)) for number in range(4)]
        mine = batches[rank::2] if step % 3 else (batches if rank else [])  # one has nothing
        optimizer_step(model, optimizer, mine, seed=0, step=step, dtype=torch.float32)
    return optimizer.arena.values.tolist()


def alone(rank):
    torch.manual_seed(0)
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=20, learning_rate=1e-2))
    assert optimizer.arena.shared is None
    for step in range(20):
        batches = [(number, pretraining_batch(seed=10 * step + number)) for number in range(4)]
        optimizer_step(model, optimizer, batches, seed=0, step=step, dtype=torch.float32)
    return optimizer.arena.values.tolist()


def test_both_ranks_take_the_same_steps_as_one():
    first, second = run_ranks(several_steps, 2)
    assert first == second
    (one,) = run_ranks(alone, 1)
    torch.testing.assert_close(torch.tensor(first), torch.tensor(one), rtol=2e-3, atol=2e-4)


def on_other_machines(rank):
    """As ranks of two machines, of which one maps nothing of the other."""
    neighbours._machine = lambda: rank
    torch.manual_seed(0)
    model = new_model()
    optimizer = AdamW(model, OptimizationConfig(num_steps=4))
    found = gradients_of(rank, optimizer, model)
    expected = found.clone()
    dist.broadcast(expected, 0)
    return not isinstance(optimizer.exchange, Neighbour), torch.equal(found, expected)


def test_ranks_of_two_machines_send_their_gradients():
    assert run_ranks(on_other_machines, 2) == [(True, True)] * 2


def with_a_rank_that_cannot(rank):
    if rank == 1:
        neighbours._mapped = lambda theirs, own: None
    optimizer = AdamW(new_model(), OptimizationConfig(num_steps=4))
    return not isinstance(optimizer.exchange, Neighbour)


def test_where_one_cannot_map_the_other_neither_does():
    assert run_ranks(with_a_rank_that_cannot, 2) == [True, True]


def of_three(rank):
    return AdamW(new_model(), OptimizationConfig(num_steps=4)).arena.shared is None


def test_three_ranks_and_one_share_nothing():
    assert run_ranks(of_three, 3) == [True] * 3


def num_open() -> int:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def closed_after(rank):
    before = num_open()
    optimizer = AdamW(new_model(), OptimizationConfig(num_steps=4))
    assert isinstance(optimizer.exchange, Neighbour)
    mapped = num_open()
    for _ in range(20):
        AdamW(new_model(), OptimizationConfig(num_steps=4))  # meets nobody
    return mapped - before <= 3 and num_open() - mapped <= 2  # a mapping keeps one of its own


def test_nobody_else_can_map_the_numbers_afterwards():
    assert run_ranks(closed_after, 2) == [True, True]
