"""Attention in each backend against the softmax formula, written out in float64."""

import pytest
import torch

from bert_core.backends.cpu.attention import _LONGEST_SAVED
from bert_core.backends.dropout import DropoutKey, attention_dropout
from bert_core.backends.operations import backend_for, use_backend
from bert_core.model.encoder import attention_probabilities
from tests.bert_core.batches import ragged_batch

HEADS, WIDTH = 3, 8
CASES = {
    "one": (7,),
    "equal": (6, 6, 6),
    "mixed": (3, 17, 64, 5, 64, 29),
    "many groups": tuple(range(1, 500, 37)),
    "longer than is saved": (_LONGEST_SAVED + 5, 9),
}


def random_qkv(lengths, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(lengths), 3, HEADS, WIDTH)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def formula(qkv, lengths, causal):
    """softmax(Q K^T / sqrt(K)) V, sequence by sequence."""
    rows = []
    for sequence in qkv.double().split(lengths):
        query, key, value = sequence.permute(1, 2, 0, 3)
        scores = query @ key.transpose(1, 2) / WIDTH**0.5
        if causal:
            scores = scores + torch.full_like(scores, -torch.inf).triu(1)
        rows.append((scores.softmax(-1) @ value).transpose(0, 1).flatten(1))
    return torch.cat(rows)


def attend(qkv, lengths, causal=False, dropout_rate=0.0, key=None):
    """In the order of the batch: what the encoder does around its layers."""
    tokens = ragged_batch(lengths)
    backend = backend_for(torch.device("cpu"))
    layout = backend.lay_out(tokens)
    order = getattr(layout, "order", None)
    ordered = qkv if order is None else qkv[order]
    return layout.restore(
        backend.attend(ordered, layout, causal, attention_dropout(key, dropout_rate))
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_attention_equals_the_formula(backend, case, causal):
    lengths = CASES[case]
    qkv = random_qkv(lengths)
    torch.testing.assert_close(
        attend(qkv, lengths, causal=causal), formula(qkv, lengths, causal), atol=1e-12, rtol=0
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_its_gradient_equals_that_of_the_formula(backend, case, causal):
    lengths = CASES[case]
    ours, theirs = (random_qkv(lengths).requires_grad_() for _ in range(2))
    weights = torch.randn(sum(lengths), HEADS * WIDTH, dtype=torch.float64)
    (attend(ours, lengths, causal=causal) * weights).sum().backward()
    (formula(theirs, lengths, causal) * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-11, rtol=0)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_lower_precision_stays_near_the_formula(backend, dtype, tolerance, case, causal, learns):
    lengths = CASES[case]
    qkv = random_qkv(lengths, dtype)
    expected = formula(qkv, lengths, causal)
    with torch.set_grad_enabled(learns):  # without gradients float32 takes another way
        ours = attend(qkv, lengths, causal=causal).double()
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("length", [12, _LONGEST_SAVED + 5])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dropout_keeps_the_mean_and_draws_alike_for_equal_keys(backend, length, dtype):
    lengths = (length,)
    qkv = random_qkv(lengths, dtype)
    qkv[:, 2] = 1  # then each output is the sum of the kept probabilities
    outputs = [
        attend(qkv, lengths, dropout_rate=0.3, key=DropoutKey.at(0, 0, index))
        for index in (0, 0, *range(2400 // length))
    ]
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[2], outputs[3])
    mean = torch.stack(outputs[2:]).double().mean()
    assert mean == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("length", [6, _LONGEST_SAVED + 2])
def test_the_gradient_under_dropout_is_that_of_the_same_draw(backend, length):
    lengths = (length, 3)
    weights = torch.randn(sum(lengths), HEADS * WIDTH, dtype=torch.float64)

    def value(qkv):
        mixed = attend(qkv, lengths, dropout_rate=0.4, key=DropoutKey.at(1, 2, 3))
        return (mixed * weights).sum()

    qkv = random_qkv(lengths).requires_grad_()
    value(qkv).backward()
    direction = torch.randn_like(qkv)
    step = 1e-6
    with torch.no_grad():
        slope = (value(qkv + step * direction) - value(qkv - step * direction)) / (2 * step)
    assert (qkv.grad * direction).sum().item() == pytest.approx(slope.item(), rel=1e-6, abs=1e-6)


def test_the_maps_are_the_probabilities_of_the_formula():
    qkv = random_qkv((9,))
    for causal in (False, True):
        probabilities = attention_probabilities(qkv, causal=causal)
        mixed = (probabilities @ qkv[:, 2].transpose(0, 1)).transpose(0, 1).flatten(1)
        torch.testing.assert_close(mixed, formula(qkv, (9,), causal), atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_both_backends_drop_the_same_probabilities_however_they_sort_and_group(case):
    lengths = CASES[case]
    qkv = random_qkv(lengths)
    key = DropoutKey.at(3, 1, 4).at_layer(5)
    results = []
    for name in ("cpu", "plain"):
        with use_backend(name):
            results.append(attend(qkv, lengths, dropout_rate=0.3, key=key))
    torch.testing.assert_close(*results, atol=1e-12, rtol=0)
