"""The learning rate over the steps, groups of parameters, and settings that cannot be."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bert_core.model.catalogue import SequenceClassifier
from bert_core.model.preparation import freeze
from bert_core.training.optimization import OPTIMIZERS, AdamW, build_optimizer
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.batches import small_config
from tests.bert_core.optimizer_runs import new_model
from tests.bert_core.optimizer_runs import new_run as run_of
from tests.bert_core.test_loop import new_run


def test_parameters_stay_views_of_one_buffer():
    model, optimizer = new_run()
    optimizer.arena.values.fill_(3.0)
    assert all((parameter == 3.0).all() for parameter in model.parameters())
    assert {p.grad.untyped_storage().data_ptr() for p in model.parameters()} == {
        optimizer.arena.gradients.untyped_storage().data_ptr()
    }


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_learning_rate_warms_up_and_decays(schedule):
    config = OptimizationConfig(learning_rate=1.0, warmup_steps=4, num_steps=12, schedule=schedule)
    rates = [config.learning_rate_at(step) for step in range(12)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    if schedule == "constant":
        assert set(rates[4:]) == {1.0}
    else:
        assert rates[4] == 1.0
        assert all(a > b > 0 for a, b in pairwise(rates[4:]))
        assert config.learning_rate_at(12) == pytest.approx(0)
        assert config.learning_rate_at(8) == pytest.approx(0.5)


def test_warm_up_stable_decay_is_flat_and_falls_over_its_last_share():
    config = OptimizationConfig(
        learning_rate=1.0, warmup_steps=2, num_steps=20, schedule="warmup_stable_decay"
    )
    rates = [config.learning_rate_at(step) for step in range(20)]
    assert rates[:2] == [0.5, 1.0]
    assert set(rates[2:17]) == {1.0}
    assert rates[16:] == [1.0, 0.75, 0.5, 0.25]
    assert config.learning_rate_at(20) == 0
    longer = [
        replace(config, decay_fraction=0.5).learning_rate_at(step) for step in (9, 10, 15, 19)
    ]
    assert longer == [1.0, 1.0, 0.5, 0.1]


def test_a_decay_takes_no_more_steps_than_the_warm_up_leaves():
    config = OptimizationConfig(
        learning_rate=1.0, warmup_steps=8, num_steps=10, decay_fraction=1.0,
        schedule="warmup_stable_decay",
    )  # fmt: skip
    assert [config.learning_rate_at(step) for step in (6, 7, 8, 9)] == [0.875, 1.0, 1.0, 0.5]


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"num_steps": 10.5}, "num_steps must be a whole number, got 10.5"),
        ({"warmup_steps": 11}, r"warmup_steps must lie in \[0, 10\], got 11"),
        ({"learning_rate": INFINITE}, "learning_rate must be positive and finite, got inf"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a number, got '1e-4'"),
        ({"eps": 0.0}, "eps must be positive and finite, got 0.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive and finite"),
        ({"weight_decay": NAN}, "weight_decay must be finite and not negative, got nan"),
        ({"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\), got 1.0"),
        ({"schedule": "square"}, "schedule must be .*cosine, constant or warmup_stable_decay"),
        ({"decay_fraction": 0.0}, r"decay_fraction must lie in \(0, 1\], got 0.0"),
        ({"optimizer": "sgd"}, "optimizer must be adamw, lamb or muon, got 'sgd'"),
        ({"layer_decay": NAN}, r"layer_decay must lie in \(0, 1\], got nan"),
        ({"embeddings_rate": INFINITE}, "embeddings_rate must be positive and finite, got inf"),
        ({"muon_momentum": None}, "muon_momentum must be a number, got None"),
        ({"exchange_dtype": "fp8"}, "exchange_dtype must be float32 or bf16, got 'fp8'"),
    ],
)
def test_impossible_settings_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        OptimizationConfig(**{"num_steps": 10, **entry})


def test_a_model_without_anything_to_train_is_refused():
    model, _ = new_run()
    with pytest.raises(ValueError, match="nothing to train"):
        AdamW(model.requires_grad_(False), OptimizationConfig(num_steps=1))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_are_slices_and_matrices_come_first(name):
    model, optimizer = run_of(name, layer_decay=0.5, embeddings_rate=3.0)
    parameters, begin = dict(model.named_parameters()), 0
    for segment in optimizer._segments:
        assert segment.begin == begin
        begin += segment.values.numel()
    assert begin == optimizer.arena.values.numel()
    order = [parameters[name].ndim < 2 for name in optimizer.arena.parameters]
    assert order == sorted(order)
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 0.5
    assert scales["encoder.layers.0.attention.to_out.weight"] == 0.25
    assert scales["encoder.embeddings.token"] == 3.0 * 0.125
    assert scales["next_sentence_head.dense.weight"] == scales["pooler.dense.weight"] == 1.0


def test_frozen_layers_keep_the_rates_of_the_others():
    torch.manual_seed(0)
    model = SequenceClassifier(small_config(), 2)
    freeze(model, embeddings=True, layers=1)
    optimizer = AdamW(model, OptimizationConfig(num_steps=1, layer_decay=0.5))
    scales = {n: g.rate_scale for g in optimizer._groups for n in g.names}
    assert scales["encoder.layers.1.attention.to_out.bias"] == 0.5
    assert not any(name.startswith("encoder.layers.0") for name in scales)


def test_the_config_names_the_optimizer_that_is_built():
    for name, kind in OPTIMIZERS.items():
        assert type(run_of(name)[1]) is kind
    assert type(build_optimizer(new_model(), OptimizationConfig(num_steps=1))) is AdamW
