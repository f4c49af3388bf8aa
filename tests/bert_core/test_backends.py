"""Two ways to compute one model: named, chosen by the device, equal to each other."""

import pytest
import torch

from bert_core.backends import plain
from bert_core.backends.context import computing
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import backend_for, use_backend
from bert_core.model.catalogue import build_model
from tests.bert_core.batches import pretraining_batch, small_config
from tests.bert_core.test_precision import batch_for

HEAD_SETTINGS = {
    "pretraining": {}, "language_model": {}, "next_sentence": {}, "regression": {},
    "multiple_choice": {}, "span_prediction": {},
    "sequence_classification": {"num_labels": 3}, "multi_label_classification": {"num_labels": 3},
    "token_classification": {"num_labels": 5},
}  # fmt: skip

CPU = torch.device("cpu")
# From long to short, as the cpu backend sorts: an element is counted by the row it is computed in.
SORTED = (64, 64, 29, 17, 5, 3)


def computed(name, model, batch, key=None, dtype=torch.float32):
    """Losses and gradients by the backend of this name."""
    model.zero_grad()
    with use_backend(name), computing(dtype):
        sums = model.loss_sums(batch, key)
        sum(total / count for total, count in sums.values()).backward()
    losses = {loss: total.item() for loss, (total, _) in sums.items()}
    return losses, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def new_model(head, **overrides):
    torch.manual_seed(0)
    config = small_config(causal=head == "language_model", **overrides)
    return build_model(head, config, **HEAD_SETTINGS[head])


@pytest.mark.parametrize("head", HEAD_SETTINGS)
def test_losses_and_gradients_of_every_head_are_equal(head):
    model, batch = new_model(head), batch_for(head)
    losses, gradients = computed("plain", model, batch)
    ours, found = computed("cpu", model, batch)
    assert ours == pytest.approx(losses, rel=1e-6)
    assert found.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rates", [(0.3, 0.0), (0.0, 0.3), (0.1, 0.1)])
def test_both_drop_the_same_elements(rates):
    model = new_model("pretraining", hidden_dropout=rates[0], attention_dropout=rates[1])
    batch, key = pretraining_batch(SORTED), DropoutKey.at(1, 2, 3)
    losses, gradients = computed("plain", model, batch, key)
    ours, found = computed("cpu", model, batch, key)
    assert ours == pytest.approx(losses, rel=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5)
    others, _ = computed("cpu", model, batch, DropoutKey.at(1, 2, 4))
    assert others != pytest.approx(losses, rel=2e-6)


def test_the_device_chooses_unless_one_is_named():
    assert backend_for(CPU).takes_compute_weights
    assert backend_for(torch.device("cuda")) is plain
    with use_backend("plain"):
        assert backend_for(CPU) is plain
        with use_backend("cpu"):
            assert backend_for(CPU) is not plain
        assert backend_for(CPU) is plain
    assert backend_for(CPU) is not plain


def test_a_backend_there_is_not_is_refused():
    with pytest.raises(ValueError, match="must be one of plain, cpu, got 'cuda'"), \
            use_backend("cuda"):  # fmt: skip
        pass
