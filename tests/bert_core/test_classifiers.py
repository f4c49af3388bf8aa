"""Classification: several labels a text, and labels that are smoothed while training."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bert_core.batch import IGNORED_LABEL, LabelledBatch
from bert_core.model.catalogue import MODELS, SequenceRegressor, SpanPredictor, build_model
from bert_core.training.loop import evaluate, train
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from bert_core.training.state import load_model, save_model
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


def test_several_labels_are_learned():
    model = new_model("multi_label_classification", num_labels=3)
    batch = several(np.random.default_rng(1).random((len(LENGTHS), 3)) < 0.5)
    optimizer = AdamW(model, OptimizationConfig(num_steps=60, learning_rate=2e-3))
    list(train(model, optimizer, lambda step: [(0, batch)], seed=0, precision="float32"))
    assert evaluate(model, [batch])["label_exact_match"] == 1.0


@pytest.mark.parametrize(
    "labels", [np.zeros((6, 3), dtype=np.int64), np.zeros((6, 2)), np.zeros(6), np.zeros(6, int)]
)
def test_labels_of_another_kind_are_refused(labels):
    model = new_model("multi_label_classification", num_labels=3)
    for ask in (model.loss_sums, model.evaluation_sums):
        with pytest.raises(ValueError, match=r"booleans or floats of shape \[6, 3\], got"):
            ask(several(labels))


SMOOTHED = {
    "sequence_classification": ({"num_labels": 5}, np.arange(6) % 5),
    "next_sentence": ({}, np.arange(6) % 2),
    "multiple_choice": ({}, np.array([2, 0])),
    "token_classification": (
        {"num_labels": 5},
        np.where(np.arange(sum(LENGTHS)) % 4, np.arange(sum(LENGTHS)) % 5, IGNORED_LABEL),
    ),
}


@pytest.mark.parametrize("head", SMOOTHED)
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_smoothed_losses_and_gradients_are_those_of_torch(head, smoothing):
    settings, labels = SMOOTHED[head]
    model = new_model(head, **settings)
    batch = several(labels)
    model.label_smoothing = smoothing
    total, count = model.loss_sums(batch)["label"]
    (total / count).backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(batch.tokens)
    logits = logits.view(len(labels), -1) if head == "multiple_choice" else logits
    theirs = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
    theirs.backward()
    torch.testing.assert_close(total / count, theirs, atol=0, rtol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, atol=1e-6, rtol=0)


def test_a_smoothed_loss_is_that_of_the_published_targets():
    model = new_model("sequence_classification", num_labels=4)
    model.label_smoothing = 0.2
    batch = several(np.arange(6) % 4)
    targets = 0.8 * F.one_hot(batch.labels, 4) + 0.2 / 4
    expected = -(targets * model(batch.tokens).log_softmax(-1)).sum()
    torch.testing.assert_close(model.loss_sums(batch)["label"].total, expected)


@pytest.mark.parametrize("weights", [[1, 2, 1, 3], (0.5, 2, 1.0, 3)])
def test_weighted_losses_are_those_of_torch_for_whole_numbers_too(weights):
    model = new_model("sequence_classification", num_labels=4)
    model.class_weights = weights
    batch = several(np.arange(6) % 4)
    theirs = F.cross_entropy(
        model(batch.tokens), batch.labels, torch.tensor([float(w) for w in weights]),
        reduction="sum",
    )  # fmt: skip
    torch.testing.assert_close(model.loss_sums(batch)["label"].total, theirs, atol=0, rtol=1e-6)


def test_weights_of_classes_go_where_the_model_goes_and_are_not_saved():
    model = new_model("sequence_classification", num_labels=4)
    names = set(model.state_dict())
    model.class_weights = [1, 2, 1, 3]
    assert set(model.state_dict()) == names
    model.to("meta")
    loss = model.loss_sums(several(np.arange(6) % 4).to("meta"))["label"].total
    assert loss.is_meta  # torch refuses to mix devices: they went along


def test_evaluation_and_what_is_saved_are_without_smoothing(tmp_path):
    model = new_model("sequence_classification", num_labels=4)
    batch = several(np.arange(6) % 4)
    before = evaluate(model, [batch])
    model.label_smoothing = 0.3
    assert evaluate(model, [batch]) == before
    save_model(tmp_path / "model", model)
    assert load_model(tmp_path / "model").label_smoothing == 0.0


def test_every_model_of_classes_can_be_smoothed_and_no_other():
    smoothed = {name for name, model in MODELS.items() if hasattr(model, "label_smoothing")}
    assert smoothed == set(SMOOTHED)
    assert not hasattr(SequenceRegressor, "label_smoothing")
    assert not hasattr(SpanPredictor, "label_smoothing")
