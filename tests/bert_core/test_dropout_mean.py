"""What dropout keeps in bfloat16 is as large as it should be: the factor itself is not rounded.

Rounded to bfloat16, 1 / 0.9 is 0.16% too small and 1 / 0.7 is 0.08% too large. T = 1,024 tokens in
sequences of S = 64, H = 4 heads.
"""

import pytest
import torch

from bert_core.backends.dropout import (
    AttentionDropout,
    DropoutKey,
    Site,
    dropout_mask,
    without_dropped,
)
from bert_core.backends.operations import backend_for
from tests.bert_core.batches import ragged_batch

CPU = torch.device("cpu")
RATES = pytest.mark.parametrize("rate", [0.1, 0.3])


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_as_large(found, expected):
    slope = (found.detach().double() * expected).sum() / expected.square().sum()
    assert slope.item() == pytest.approx(1, abs=4e-4)


@RATES
def test_of_hidden_states(backend, rate):
    key, values, gradient = (
        DropoutKey.at(0, 0, 0),
        drawn(1024, 256, seed=0),
        drawn(1024, 256, seed=1),
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
    update, gradient = drawn(1024, 256, seed=0), drawn(1024, 256, seed=1)
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
    qkv, gradient = drawn(1024, 3, 4, 64, seed=0), drawn(1024, 256, seed=1)
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
