"""Dropout is a function of (seed, step, micro-batch), at the rate asked for."""

import numpy as np
import pytest
import torch

from bert_core.dropout import DropoutKeys, dropout

CPU = torch.device("cpu")


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.01])
def test_elements_are_dropped_at_the_rate(rate):
    signs = DropoutKeys.at(0, 0, 0).signs(1_000_000, rate, CPU)
    dropped = (signs < 0).float().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 1e6) ** 0.5 + 2**-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_elements_are_scaled_and_the_others_zero(dtype):
    scale = DropoutKeys.at(0, 0, 0).scale(torch.empty(1000, 37, dtype=dtype), 0.2)
    assert scale.dtype == dtype
    assert sorted(scale.unique().tolist()) == [0, 1.25]
    assert scale.float().mean() == pytest.approx(1, abs=0.02)


def test_the_draw_depends_on_seed_step_and_micro_batch_alone():
    def draw(*position):
        return DropoutKeys.at(*position).signs(1000, 0.5, CPU)

    first = draw(1, 2, 3)
    torch.manual_seed(5)
    np.random.default_rng(5).random(9)
    assert torch.equal(first, draw(1, 2, 3))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1)):
        agreement = ((draw(*other) < 0) == (first < 0)).float().mean().item()
        assert agreement == pytest.approx(0.5, abs=0.08)


def test_successive_calls_draw_independently():
    keys = DropoutKeys.at(0, 0, 0)
    calls = torch.stack([keys.signs(500_000, 0.5, CPU) < 0 for _ in range(6)]).float() - 0.5
    correlation = torch.corrcoef(calls) - torch.eye(6)
    assert correlation.abs().max() < 0.01
    products = calls.prod(dim=0).mean() * 2**6  # all six together
    assert abs(products) < 0.01


def test_neighbours_within_a_call_are_independent():
    dropped = (DropoutKeys.at(0, 0, 0).signs(1_000_000, 0.3, CPU) < 0).float() - 0.3
    for distance in (1, 2, 3, 64, 128, 768, 1 << 18):
        correlation = (dropped[:-distance] * dropped[distance:]).mean() / (0.3 * 0.7)
        assert abs(correlation) < 0.006


def test_without_keys_or_at_rate_zero_nothing_is_dropped():
    values = torch.randn(5, 5)
    assert dropout(values, 0.5, None) is values
    assert dropout(values, 0.0, DropoutKeys.at(0, 0, 0)) is values
