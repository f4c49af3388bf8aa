"""The arena says where a model trains; one that has left it is refused before a step is taken."""

import numpy as np
import pytest
import torch
from torch import nn

from bert_core.batch import LabelledBatch
from bert_core.model.catalogue import SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.loop import optimizer_step, train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import ragged_batch, small_config

TABLE = r"encoder\.embeddings\.token"


def new_run(embeddings_frozen=False):
    torch.manual_seed(0)
    model = SequenceClassifier(small_config(), 3)
    if embeddings_frozen:
        freeze(model, embeddings=True)
    config = OptimizationConfig(num_steps=3, learning_rate=1e-3, schedule="constant")
    return model, AdamW(model, config)


def micro_batches(step):
    yield 0, LabelledBatch.from_arrays(ragged_batch(seed=step), np.arange(6) % 3)


def replace_one(model):
    model.encoder.embeddings.token = nn.Parameter(model.encoder.embeddings.token.detach().clone())


def replace_a_gradient(model):
    model.encoder.embeddings.token.grad = torch.zeros_like(model.encoder.embeddings.token)


def load_by_assignment(model):
    model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()}, assign=True)


CHANGES = {
    "moved and back": lambda model: model.double().float(),
    "on another device": lambda model: model.to("meta"),
    "loaded by assignment": load_by_assignment,
    "one parameter replaced": replace_one,
    "frozen": lambda model: model.requires_grad_(False),
    "gradients set to none": lambda model: model.zero_grad(),
    "one gradient replaced": replace_a_gradient,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_left_its_arena_is_refused_before_the_first_step(change, backend):
    model, optimizer = new_run()
    CHANGES[change](model)
    before = optimizer.arena.values.clone()
    with pytest.raises(ValueError, match=f"others at {TABLE}.*build its optimizer"):
        next(train(model, optimizer, micro_batches, seed=0))
    assert torch.equal(optimizer.arena.values, before)
    assert optimizer.num_updates == 0


def test_so_is_one_that_left_it_between_two_steps(backend):
    model, optimizer = new_run()
    steps = train(model, optimizer, micro_batches, seed=0)
    next(steps)
    model.double().float()
    with pytest.raises(ValueError, match=r"others at .* and \d+ more; freeze, move,"):
        next(steps)


def test_what_is_frozen_may_move_and_values_may_be_loaded(backend):
    model, optimizer = new_run(embeddings_frozen=True)
    table = model.encoder.embeddings.token
    table.data = table.data.clone()
    model.load_state_dict({n: t.clone() for n, t in model.state_dict().items()})
    model.float().to("cpu")
    model.zero_grad(set_to_none=False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(2):
        report = optimizer_step(model, optimizer, list(micro_batches(step)), seed=0, step=step)
        assert report.is_taken
    for name, parameter in model.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == (not name.startswith("encoder.embeddings.")), name
