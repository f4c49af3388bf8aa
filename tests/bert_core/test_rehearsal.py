"""A rehearsed step leaves no trace in the training run that follows."""

import pytest
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.loop import rehearse, train
from bert_core.training.optimization import OptimizationConfig, build_optimizer
from tests.bert_core.batches import pretraining_batch

VOCABULARY = 300


def trained(optimizer_name, precision, *, is_rehearsed):
    torch.manual_seed(0)
    model = PretrainingModel(encoder_config("tiny", VOCABULARY), next_sentence=False)
    config = OptimizationConfig(
        num_steps=3, learning_rate=1e-3, optimizer=optimizer_name, averaging_decay=0.9
    )
    optimizer = build_optimizer(model, config)
    if is_rehearsed:
        before = {name: values.clone() for name, values in model.state_dict().items()}
        state = torch.get_rng_state()
        rehearse(model, optimizer, pretraining_batch([64] * 8, VOCABULARY), precision=precision)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
        assert not optimizer.arena.gradients.any()

    def micro_batches(step):
        return [(0, pretraining_batch([12, 40], VOCABULARY)), (1, pretraining_batch([7], 300))]

    losses = [
        float(report.loss)
        for report in train(model, optimizer, micro_batches, seed=0, precision=precision)
    ]
    return losses, model.state_dict(), optimizer.state_dict()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize(
    ("optimizer", "precision"), [("adamw", "float32"), ("muon", "bf16"), ("lamb", "bf16")]
)
def test_a_training_after_a_rehearsal_has_the_same_bits(optimizer, precision):
    plain = trained(optimizer, precision, is_rehearsed=False)
    rehearsed = trained(optimizer, precision, is_rehearsed=True)
    assert plain[0] == rehearsed[0]
    assert same(plain[1], rehearsed[1])
    assert same(plain[2], rehearsed[2])


def test_a_rehearsal_meets_what_a_step_would_meet():
    model = PretrainingModel(
        encoder_config("tiny", VOCABULARY, max_position_embeddings=32), next_sentence=False
    )
    optimizer = build_optimizer(model, OptimizationConfig(num_steps=3))
    with pytest.raises(ValueError, match="32"):
        rehearse(model, optimizer, pretraining_batch([64], VOCABULARY))
