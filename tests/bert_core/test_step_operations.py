"""What a step is said to multiply, against torch's own count."""

import numpy as np
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
    labels = {
        "language_model": lambda: next_token_labels(tokens),
        "token_classification": lambda: np.arange(tokens.num_tokens) % 2,
        "sequence_classification": lambda: np.arange(len(lengths)) % 2,
    }[task]()
    return LabelledBatch.from_arrays(tokens, labels)


@pytest.mark.parametrize(
    "task", ["pretraining", "language_model", "token_classification", "sequence_classification"]
)
def test_the_products_counted_are_those_that_torch_counts(task):
    """Sequences of one length: then the plain backend, which torch can count, pads nothing."""
    lengths = [64] * 8
    is_causal = task == "language_model"
    config = encoder_config(
        "mini", VOCABULARY, causal=is_causal, hidden_dropout=0.0, attention_dropout=0.0
    )
    settings = {"num_labels": 2} if task.endswith("classification") else {}
    model, batch = build_model(task, config, **settings), a_batch(task, lengths)
    counter = FlopCounterMode(display=False)
    with use_backend("plain"), counter:
        losses = model.loss_sums(batch)
        torch.stack([each.total for each in losses.values()]).sum().backward()
    counted = counter.get_total_flops()
    needed = batch_operations(model, batch)
    # Causal attention computes the half that is not needed, too; poolers and small heads count.
    assert needed == pytest.approx(counted, rel=0.05)


def test_what_nobody_reads_of_the_last_layer_is_not_needed():
    config = encoder_config("tiny", VOCABULARY)
    tagger = build_model("token_classification", config, num_labels=2)
    classifier = build_model("sequence_classification", config, num_labels=2)
    lengths = [64] * 8
    every = batch_operations(tagger, a_batch("token_classification", lengths))
    first = batch_operations(classifier, a_batch("sequence_classification", lengths))
    width, wide = config.hidden_size, config.intermediate_size
    unread = 8 * 63
    products = 2 * width**2 + 2 * width * wide + 2 * width * 64
    assert every - first == 6 * unread * products
