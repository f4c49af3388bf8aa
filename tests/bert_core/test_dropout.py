"""Dropout is a function of (seed, step, micro-batch), at the rate asked for."""

import numpy as np
import pytest
import torch

from bert_core.backends.dropout import DropoutKey, chunk_offsets, dropout


def mask(*position, size, rate):
    return DropoutKey.at(*position).mask(torch.empty(size), rate)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.01])
def test_elements_are_dropped_at_the_rate(rate):
    signs = mask(0, 0, 0, size=1_000_000, rate=rate).signed_mask()
    dropped = (signs < 0).float().mean().item()
    assert dropped == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 1e6) ** 0.5 + 2**-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_elements_are_scaled_and_the_others_zero(dtype):
    scale = mask(0, 0, 0, size=(1000, 37), rate=0.2).scale(dtype)
    assert scale.dtype == dtype
    assert scale.shape == (1000, 37)
    assert sorted(scale.unique().tolist()) == [0, 1.25]
    assert scale.float().mean() == pytest.approx(1, abs=0.02)


def test_the_draw_depends_on_seed_step_and_micro_batch_alone():
    def draw(*position):
        return mask(*position, size=1000, rate=0.5).signed_mask()

    first = draw(1, 2, 3)
    torch.manual_seed(5)
    np.random.default_rng(5).random(9)
    assert torch.equal(first, draw(1, 2, 3))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1)):
        agreement = ((draw(*other) < 0) == (first < 0)).float().mean().item()
        assert agreement == pytest.approx(0.5, abs=0.08)


def test_successive_calls_draw_independently():
    generator, values = DropoutKey.at(0, 0, 0), torch.empty(500_000)
    calls = (
        torch.stack([generator.mask(values, 0.5).signed_mask() < 0 for _ in range(6)]).float() - 0.5
    )
    correlation = torch.corrcoef(calls) - torch.eye(6)
    assert correlation.abs().max() < 0.01
    products = calls.prod(dim=0).mean() * 2**6  # all six together
    assert abs(products) < 0.01


def test_neighbours_within_a_call_are_independent():
    dropped = (mask(0, 0, 0, size=1_000_000, rate=0.3).signed_mask() < 0).float() - 0.3
    for distance in (1, 2, 3, 64, 128, 768, 1 << 18):
        correlation = (dropped[:-distance] * dropped[distance:]).mean() / (0.3 * 0.7)
        assert abs(correlation) < 0.006


def test_a_mask_is_the_same_each_time_it_is_drawn():
    generator = DropoutKey.at(0, 0, 0)
    first, second = generator.mask(torch.empty(1000), 0.5), generator.mask(torch.empty(1000), 0.5)
    signs = first.signed_mask()
    assert not torch.equal(signs, second.signed_mask())
    assert torch.equal(signs, first.signed_mask())


def test_a_chunk_of_random_words_never_meets_itself():
    lefts, rights = chunk_offsets(7, 0, 4_000_000)  # by chance five of them would
    assert (lefts != rights).all()
    assert max(lefts.max(), rights.max()) < (1 << 20) - (1 << 18)


def test_without_a_generator_or_at_rate_zero_nothing_is_dropped():
    values = torch.randn(5, 5)
    assert dropout(values, 0.5, None) is values
    assert dropout(values, 0.0, DropoutKey.at(0, 0, 0)) is values
