"""The loss over the vocabulary, of each backend, against torch's own cross-entropy."""

import math

import pytest
import torch
import torch.nn.functional as F

from bert_core.backends.context import ComputeWeight, computing
from bert_core.backends.cpu import layers
from bert_core.backends.operations import backend_for


def vocabulary_loss_sum(*arguments):
    return backend_for(torch.device("cpu")).vocabulary_loss_sum(*arguments)


def inputs(num_rows=37, dtype=torch.float32):
    torch.manual_seed(0)
    hidden = torch.randn(num_rows, 16).to(dtype).requires_grad_()
    embeddings = torch.randn(50, 16, requires_grad=True)
    bias = torch.randn(50, requires_grad=True)
    labels = torch.randint(0, 50, (num_rows,))
    labels[::5] = -100
    return hidden, embeddings, bias, labels


def expected(hidden, embeddings, bias, labels):
    ours = [t.detach().double().requires_grad_() for t in (hidden, embeddings, bias)]
    logits = F.linear(*ours)
    loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-100)
    (loss / 7).backward()
    return loss, [tensor.grad for tensor in ours]


@pytest.mark.parametrize("rows_at_a_time", [4096, 10])
def test_loss_and_gradients_equal_those_of_torch(backend, monkeypatch, rows_at_a_time):
    monkeypatch.setattr(layers, "_ROWS", rows_at_a_time)
    hidden, embeddings, bias, labels = inputs()
    loss = vocabulary_loss_sum(hidden, embeddings, bias, labels)
    (loss / 7).backward()
    want, gradients = expected(hidden, embeddings, bias, labels)
    torch.testing.assert_close(loss.double(), want, atol=1e-4, rtol=0)
    for tensor, gradient in zip((hidden, embeddings, bias), gradients, strict=True):
        torch.testing.assert_close(tensor.grad.double(), gradient, atol=1e-5, rtol=0)


def test_gradients_are_added_to_main_grad():
    hidden, embeddings, bias, labels = inputs()
    weights = {
        parameter: ComputeWeight(parameter.detach(), torch.ones_like(parameter))
        for parameter in (embeddings, bias)
    }
    with computing(None, weights):
        loss = vocabulary_loss_sum(hidden, embeddings, bias, labels)
    (loss / 7).backward()
    _, gradients = expected(hidden, embeddings, bias, labels)
    assert embeddings.grad is None
    for weight, gradient in zip(weights.values(), gradients[1:], strict=True):
        torch.testing.assert_close(weight.main_grad.double() - 1, gradient, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_rows", [37, 1100])  # 1,100 rows take the packed kernel
def test_bfloat16_stays_near(backend, num_rows):
    hidden, embeddings, bias, labels = inputs(num_rows, torch.bfloat16)
    with computing(None, {embeddings: ComputeWeight(embeddings.detach().bfloat16())}):
        loss = vocabulary_loss_sum(hidden, embeddings, bias, labels)
    (loss / 7).backward()
    want, gradients = expected(hidden, embeddings, bias, labels)
    assert loss.item() == pytest.approx(want.item(), rel=0.01)
    for tensor, gradient in zip((hidden, embeddings, bias), gradients, strict=True):
        difference = (tensor.grad.double() - gradient).norm() / gradient.norm()
        assert difference < 0.02


def test_no_label_at_all_gives_zero(backend):
    hidden, embeddings, bias, _ = inputs()
    nothing = torch.empty(0, dtype=torch.int64)
    loss = vocabulary_loss_sum(hidden[:0], embeddings, bias, nothing)
    loss.backward()
    assert loss == 0
    assert embeddings.grad.abs().sum() == 0


@pytest.mark.parametrize("logit", [5.0, 10.8125, 14.0])  # p = 0.75, 0.999 and 0.99996
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_nearly_certain_keeps_its_loss_and_its_gradient(backend, dtype, logit):
    hidden = torch.tensor([[1.0, 0.0]] * 3, dtype=dtype, requires_grad=True)
    embeddings = torch.zeros(50, 2)
    embeddings[7, 0] = logit
    embeddings.requires_grad_()
    bias = torch.zeros(50, requires_grad=True)
    with computing(None, {embeddings: ComputeWeight(embeddings.detach().to(dtype))}):
        loss = vocabulary_loss_sum(hidden, embeddings, bias, torch.tensor([7, -100, 7]))
    loss.backward()
    doubt = 49 / (math.exp(logit) + 49)  # 1 - p
    assert loss.item() == pytest.approx(-2 * math.log1p(-doubt), rel=5e-3)
    assert bias.grad[7].item() == pytest.approx(-2 * doubt, rel=5e-3)
    assert hidden.grad[0, 0].item() == pytest.approx(-doubt * logit, rel=5e-3)
    assert hidden.grad[1].abs().sum() == 0
