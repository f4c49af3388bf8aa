"""Dropout is a function of (seed, step, micro-batch, layer, site, element), at the rate asked for.

That is on a CPU; on a GPU, and where layers are compiled, torch's generator draws.
"""

import numpy as np
import pytest
import torch

from bert_core.backends.dropout import (
    CHUNK,
    AttentionDropout,
    DropoutKey,
    Site,
    dropout_mask,
    without_dropped,
)
from bert_core.backends.operations import backend_for
from tests.bert_core.batches import ragged_batch

SITE = Site.ATTENTION_OUTPUT


def mask(*position, size, rate, layer=0, site=SITE):
    return dropout_mask(torch.empty(size), rate, DropoutKey.at(*position).at_layer(layer), site)


def dropped(*position, size, rate, **where):
    return mask(*position, size=size, rate=rate, **where).kept(torch.float32) == 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.01])
def test_elements_are_dropped_at_the_rate(rate):
    share = dropped(0, 0, 0, size=1_000_000, rate=rate).float().mean().item()
    assert share == pytest.approx(rate, abs=4 * (rate * (1 - rate) / 1e6) ** 0.5 + 2**-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_elements_are_scaled_and_the_others_zero(dtype):
    drawn = mask(0, 0, 0, size=(1000, 37), rate=0.2)
    kept = drawn.kept(dtype)
    assert kept.dtype == dtype
    assert kept.shape == (1000, 37)
    assert sorted(kept.unique().tolist()) == [0, 1]
    assert drawn.factor == 1.25
    assert torch.equal(kept == 0, drawn.words() < drawn.threshold)
    assert kept.float().mean() * drawn.factor == pytest.approx(1, abs=0.02)


def test_the_draw_depends_on_its_position_alone():
    first = dropped(1, 2, 3, size=1000, rate=0.5)
    torch.manual_seed(5)
    np.random.default_rng(5).random(9)
    assert torch.equal(first, dropped(1, 2, 3, size=1000, rate=0.5))
    others = [
        *({"position": other} for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (3, 2, 1))),
        {"layer": 1}, {"site": Site.FEED_FORWARD_OUTPUT}, {"layer": 2, "site": Site.EMBEDDINGS},
    ]  # fmt: skip
    for other in others:
        where = {"position": (1, 2, 3), **other}
        draw = dropped(*where.pop("position"), size=1000, rate=0.5, **where)
        assert (draw == first).float().mean().item() == pytest.approx(0.5, abs=0.08)


def test_sites_and_layers_draw_independently():
    key, values = DropoutKey.at(0, 0, 0), torch.empty(500_000)
    draws = [
        dropout_mask(values, 0.5, key.at_layer(layer), site).words() < 1 << 14
        for layer in range(2)
        for site in (Site.ATTENTION_PROBABILITIES, Site.ATTENTION_OUTPUT, Site.FEED_FORWARD_OUTPUT)
    ]
    calls = torch.stack(draws).float() - 0.5
    correlation = torch.corrcoef(calls) - torch.eye(6)
    assert correlation.abs().max() < 0.01
    products = calls.prod(dim=0).mean() * 2**6  # all six together
    assert abs(products) < 0.01


@pytest.mark.parametrize("lengths", [(3,), (300, 12, 299), (20, 20)])
def test_probabilities_of_a_padded_batch_are_those_of_its_sequences(lengths):
    drawn = AttentionDropout(DropoutKey.at(7, 8, 9).at_layer(2), 0.3)
    kept = drawn.kept(lengths, 5, torch.float64)
    offsets = drawn.offsets(len(lengths), 5, max(lengths))
    for place, length in enumerate(lengths):
        alone = drawn.signs(offsets, [(place, length)], 5, length)
        assert torch.equal(alone < 0, kept[place, :, :length, :length] == 0)


def test_a_stretch_of_random_words_never_meets_itself():
    lefts, rights = DropoutKey.at(7, 0, 0).offsets(SITE, 4_000_000)  # by chance five of them would
    assert (lefts != rights).all()
    assert max(lefts.max(), rights.max()) < (1 << 20) - CHUNK


def test_masks_are_those_of_earlier_versions():
    key = DropoutKey.at(1, 2, 3).at_layer(2)
    drawn = dropout_mask(torch.empty(1000), 0.1, key, Site.ATTENTION_OUTPUT)
    assert drawn.words()[:4].tolist() == [26816, 10857, 12151, 3256]
    assert key.offsets(1, 2).tolist() == [[328298, 201255], [105371, 44229]]


def test_a_key_for_a_gpu_seeds_torch_s_generator():
    drawn = []
    for position in ((1, 2, 3), (1, 2, 3), (1, 2, 4)):
        assert DropoutKey.at(*position, "meta").pool is None
        drawn.append(torch.rand(4))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


# In bfloat16, 1 / 0.9 would be 0.16% too small. T = 1,024 tokens, S = 64, H = 4 heads.
CPU = torch.device("cpu")
RATES = pytest.mark.parametrize("rate", [0.1, 0.3])


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_as_large(found, expected):
    slope = (found.detach().double() * expected).sum() / expected.square().sum()
    assert slope.item() == pytest.approx(1, abs=4e-4)


@RATES
def test_of_hidden_states(backend, rate):
    key, values, gradient = (
        DropoutKey.at(0, 0, 0),
        normal(1024, 256, seed=0),
        normal(1024, 256, seed=1),
    )
    values.requires_grad_()
    mask = dropout_mask(values, rate, key, Site.EMBEDDINGS)
    out = without_dropped(values, mask)
    out.backward(gradient)
    scale = mask.kept(torch.float64) / (1 - rate)
    assert_as_large(out, values.detach() * scale)
    assert_as_large(values.grad, gradient * scale)


@RATES
def test_of_what_is_added_and_normalized(backend, rate):
    key = DropoutKey.at(0, 0, 0)
    mask = dropout_mask(torch.empty(1024, 256), rate, key, Site.ATTENTION_OUTPUT)
    update, gradient = normal(1024, 256, seed=0), normal(1024, 256, seed=1)
    update.requires_grad_()
    # Beside such an epsilon the variance is nothing: centred values are divided by 2^10.
    out = backend_for(CPU).add_norm(
        torch.zeros_like(update), update, mask, torch.ones(256), torch.zeros(256), 2.0**20
    )
    out.backward(gradient)
    scale = mask.kept(torch.float64) / (1 - rate)
    assert_as_large(out * 2**10, centred(update.detach() * scale))
    assert_as_large(update.grad * 2**10, centred(gradient.double()) * scale)


def centred(values):
    return values - values.mean(dim=-1, keepdim=True)


@RATES
def test_of_attention_probabilities(backend, rate):
    dropped = AttentionDropout(DropoutKey.at(0, 0, 0), rate)
    qkv, gradient = normal(1024, 3, 4, 64, seed=0), normal(1024, 256, seed=1)
    qkv[:, :2] = 0  # so that every token reads all of its sequence alike
    qkv.requires_grad_()
    operations, tokens = backend_for(CPU), ragged_batch((64,) * 16)
    out = operations.attend(qkv, operations.lay_out(tokens), False, dropped)
    out.backward(gradient)
    kept = dropped.kept((64,) * 16, 4, torch.float64)  # [N, H, S, S]
    read = kept / 64 / (1 - rate)
    assert_as_large(by_head(out), read @ by_head(qkv.detach()[:, 2]))
    assert_as_large(by_head(qkv.grad[:, 2]), read.transpose(2, 3) @ by_head(gradient))


def by_head(values):
    """[T, D] or [T, H, K] -> [N, H, S, K] in float64."""
    return values.detach().double().reshape(16, 64, 4, 64).transpose(1, 2)
