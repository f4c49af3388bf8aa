"""What a step is said to multiply, against torch's own count."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bert_core.backends.operations import use_backend
from bert_core.batch import LabelledBatch, next_token_labels
from bert_core.config import encoder_config
from bert_core.model.catalogue import build_model
from bert_core.training.step_operations import batch_operations
from tests.bert_core.batches import pretraining_batch, ragged_batch

VOCABULARY = 8_000


def a_batch(task, lengths):
    if task == "pretraining":
        return pretraining_batch(lengths, VOCABULARY)
    tokens = ragged_batch(lengths, VOCABULARY)
    return LabelledBatch.from_arrays(tokens, next_token_labels(tokens))


@pytest.mark.parametrize("task", ["pretraining", "language_model"])
def test_the_products_counted_are_those_that_torch_counts(task):
    """Sequences of one length: then the plain backend, which torch can count, pads nothing."""
    lengths = [64] * 8
    is_causal = task == "language_model"
    config = encoder_config(
        "mini", VOCABULARY, causal=is_causal, hidden_dropout=0.0, attention_dropout=0.0
    )
    model, batch = build_model(task, config), a_batch(task, lengths)
    counter = FlopCounterMode(display=False)
    with use_backend("plain"), counter:
        losses = model.loss_sums(batch)
        torch.stack([each.total for each in losses.values()]).sum().backward()
    counted = counter.get_total_flops()
    needed = batch_operations(config, batch)
    # Causal attention computes the half that is not needed, too; poolers and small heads count.
    assert needed == pytest.approx(counted, rel=0.05)
