"""Which parameters are updated together, at which rate; and configs that cannot be."""

import pytest
import torch

from bert_core.model.catalogue import SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.optimization import LAMB, OPTIMIZERS, AdamW, Muon, build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import small_config
from tests.bert_core.optimizer_runs import DECAY, new_model, new_run


def test_without_layer_decay_there_are_two_groups_in_the_models_order():
    model, optimizer = new_run("adamw")
    names = [name for name, _ in model.named_parameters()]
    parameters = dict(model.named_parameters())
    expected = sorted(names, key=lambda name: parameters[name].ndim < 2)
    assert list(optimizer.arena.parameters) == expected
    assert [(g.kind, g.weight_decay) for g in optimizer._groups] == [
        ("matrix", DECAY), ("vector", 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_are_slices_and_matrices_come_first(name):
    model, optimizer = new_run(name, layer_decay=0.5, rate_scales={"*.bias": 2.0})
    parameters, begin = dict(model.named_parameters()), 0
    for segment in optimizer._segments:
        assert segment.begin == begin
        begin += segment.values.numel()
    assert begin == optimizer.arena.values.numel()
    order = [parameters[name].ndim < 2 for name in optimizer.arena.parameters]
    assert order == sorted(order)
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 2.0 * 0.5
    assert scales["encoder.layers.0.attention.to_out.weight"] == 0.25
    assert scales["encoder.embeddings.token"] == 0.125
    assert scales["next_sentence_head.dense.weight"] == scales["pooler.dense.weight"] == 1.0


def test_of_several_patterns_the_first_that_fits_counts():
    _, optimizer = new_run("adamw", rate_scales={"encoder.layers.1.*": 3.0, "encoder.*": 2.0})
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 3.0
    assert scales["encoder.layers.0.attention.to_out.bias"] == 2.0
    assert scales["vocabulary_head.bias"] == 1.0


def test_frozen_layers_keep_the_rates_of_the_others():
    torch.manual_seed(0)
    model = SequenceClassifier(small_config(), 2)
    freeze(model, embeddings=True, layers=1)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1, layer_decay=0.5))
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 0.5
    assert not any(name.startswith("encoder.layers.0") for name in scales)


def test_what_does_not_fit_the_model_is_refused():
    with pytest.raises(ValueError, match=r"none that fits 'decoder\.\*'"):
        new_run("adamw", rate_scales={"decoder.*": 2.0})
    config = OptimizationConfig(num_steps=1, layer_decay=0.9)
    with pytest.raises(ValueError, match=r"layer_decay must be 1\.0 for a model without"):
        AdamW(torch.nn.Linear(2, 2), config)


@pytest.mark.parametrize("kind", [AdamW, LAMB, Muon])
def test_each_class_takes_a_config_that_names_none_or_it(kind):
    for config in (
        OptimizationConfig(num_steps=40, learning_rate=1e-3),
        OptimizationConfig(num_steps=1, optimizer=kind.name),
    ):
        optimizer = kind(new_model(), config)
        assert optimizer.name == optimizer.config.optimizer == kind.name
    assert build_optimizer(new_model(), OptimizationConfig(num_steps=1)).name == "adamw"


def test_a_class_refuses_the_config_of_another():
    config = OptimizationConfig(num_steps=1, optimizer="adamw")
    with pytest.raises(ValueError, match="names the optimizer 'adamw', but lamb was built; leave"):
        LAMB(new_model(), config)
