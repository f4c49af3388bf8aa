"""The learning rate goes up and down as drawn, and settings that cannot be are refused."""

from dataclasses import replace
from itertools import pairwise

import pytest

from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
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
        ({"warmup_steps": 11}, r"warmup_steps must lie in \[0, 10\], got 11"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"weight_decay": -1.0}, "weight_decay must be finite and not negative, got -1.0"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers in \[0, 1\)"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive or None"),
        ({"schedule": "square"}, "schedule must be .*cosine, constant or warmup_stable_decay"),
        ({"decay_fraction": 0.0}, r"decay_fraction must lie in \(0, 1\], got 0.0"),
        ({"decay_fraction": "half"}, "decay_fraction must be a number"),
        ({"optimizer": "sgd"}, "optimizer must be adamw, lamb or muon, got 'sgd'"),
        ({"layer_decay": 0.0}, r"layer_decay must lie in \(0, 1\], got 0.0"),
        (
            {"rate_scales": {"a*": 0.0}},
            "rate_scales must be .* finite, got 0.0 for 'a\\*'",
        ),
        ({"averaging_decay": 1.0}, r"averaging_decay must lie in \[0, 1\), got 1.0"),
        ({"muon_momentum": 1.0}, r"muon_momentum must lie in \[0, 1\), got 1.0"),
        ({"exchange_dtype": "fp8"}, "exchange_dtype must be float32 or bf16, got 'fp8'"),
        ({"learning_rate": NAN}, "learning_rate must be positive and finite, got nan"),
        ({"learning_rate": INFINITE}, "learning_rate must be positive and finite, got inf"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a number, got '1e-4'"),
        ({"eps": INFINITE}, "eps must be positive and finite, got inf"),
        ({"weight_decay": NAN}, "weight_decay must be finite and not negative, got nan"),
        ({"weight_decay": INFINITE}, "weight_decay must be finite and not negative, got inf"),
        ({"layer_decay": NAN}, r"layer_decay must lie in \(0, 1\], got nan"),
        ({"averaging_decay": NAN}, r"averaging_decay must lie in \[0, 1\), got nan"),
        ({"rate_scales": {"a": INFINITE}}, "rate_scales must be positive and finite, got inf"),
        ({"num_steps": 10.5}, "num_steps must be a whole number, got 10.5"),
        ({"num_steps": NAN}, "num_steps must be a whole number, got nan"),
        ({"warmup_steps": 1.5}, "warmup_steps must be a whole number, got 1.5"),
        ({"betas": 0.9}, r"betas must be two numbers in \[0, 1\), got 0.9"),
        ({"betas": (0.9,)}, r"betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        ({"betas": (0.9, "0.999")}, r"betas must be two numbers in \[0, 1\), got \(0.9, '0.999'"),
        ({"betas": (0.9, NAN)}, r"betas must be two numbers in \[0, 1\), got \(0.9, nan\)"),
    ],
)
def test_impossible_settings_are_refused(entry, message):
    with pytest.raises(ValueError, match=message):
        OptimizationConfig(**{"num_steps": 10, **entry})


def test_a_model_without_anything_to_train_is_refused():
    model, _ = new_run()
    with pytest.raises(ValueError, match="nothing to train"):
        AdamW(model.requires_grad_(False), OptimizationConfig(num_steps=1))
