"""Several labels a text: what is counted, and that they are learned."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert_core.batch import LabelledBatch
from bert_core.model.catalogue import build_model
from bert_core.training.loop import evaluate
from tests.bert_core.batches import LENGTHS, ragged_batch, small_config


def new_model(head, **settings):
    torch.manual_seed(0)
    return build_model(head, small_config(initializer_range=0.2), **settings)


def several(classes):
    return LabelledBatch.from_arrays(ragged_batch(), classes)


def test_booleans_and_floats_count_as_decisions_and_spans_as_labels():
    classes = np.random.default_rng(0).random((len(LENGTHS), 3)) < 0.5
    for labels in (classes, classes.astype(np.float32), torch.from_numpy(classes)):
        batch = several(labels)
        assert batch.labels.dtype == torch.float32
        assert batch.counts == {"label": 18}
    assert several(np.zeros((6, 2), dtype=np.int64)).counts == {"label": 6}
    assert several(np.linspace(0, 1, 6)).counts == {"label": 6}


def test_figures_of_several_labels_count_decisions_and_whole_texts():
    model = new_model("multi_label_classification", num_labels=3)
    likely = (model(ragged_batch()) > 0).numpy()
    assert likely.any()
    assert not likely.all()
    classes = likely.copy()
    classes[1, 0] ^= True
    classes[4] ^= True
    figures = evaluate(model, [several(classes)])
    assert figures["label_accuracy"] == pytest.approx(14 / 18)
    assert figures["label_exact_match"] == pytest.approx(4 / 6)
    expected = F.binary_cross_entropy_with_logits(
        model(ragged_batch()), torch.from_numpy(classes).float()
    )
    assert figures["label_loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert set(figures) == set(model.figure_names)
