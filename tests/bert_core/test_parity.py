"""Logits, losses and gradients equal those of the reference, `transformers`, head by head.

The reference pads; ours are ragged. Its models are opened from what we export, which has to
happen without a warning.
"""

import numpy as np
import pytest
import torch
import transformers
from transformers.utils import logging as transformers_logging

from bert_core.batch import IGNORED_LABEL, LabelledBatch, next_token_labels
from bert_core.hugging_face import export_model
from bert_core.hugging_face.tensors import to_hugging_face
from bert_core.model.catalogue import build_model
from tests.bert_core.batches import LENGTHS, pretraining_batch, ragged_batch, small_config

pytestmark = pytest.mark.usefixtures("backend")

SHAPES = {
    "narrow": {},
    "one head": {"num_attention_heads": 1, "num_layers": 1},
    "wide": {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512},
    "deep": {"num_layers": 5},
}


@pytest.fixture
def warnings_of_reference(caplog):
    """What `transformers` logs at the level of warnings or above."""
    transformers_logging.enable_propagation()
    yield lambda: [r.getMessage() for r in caplog.records if r.levelname != "INFO"]
    transformers_logging.disable_propagation()


@pytest.fixture
def in_reference(tmp_path, warnings_of_reference):
    def open_in_reference(model, reference_class):
        export_model(tmp_path / "exported", model)
        reference = reference_class.from_pretrained(tmp_path / "exported")
        assert warnings_of_reference() == []
        return reference.eval()

    return open_in_reference


def new_model(head, shape="narrow", **settings):
    causal = settings.pop("causal", False)
    torch.manual_seed(0)
    model = build_model(head, small_config(causal=causal, **SHAPES[shape]), **settings)
    with torch.no_grad():  # biases and normalizations that do something
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def padded(tokens):
    """A ragged batch as the reference wants it."""
    mask = torch.ones(tokens.num_tokens, dtype=torch.long)
    return {
        "input_ids": tokens.padded(tokens.input_ids, 0),
        "token_type_ids": tokens.padded(tokens.token_type_ids, 0),
        "attention_mask": tokens.padded(mask, 0),
    }


def is_token(tokens):
    return padded(tokens)["attention_mask"].bool()


def scattered(tokens, positions, values):
    """[B, S] labels of the reference, from those at `positions` of the ragged tokens."""
    labels = torch.full((tokens.num_tokens,), IGNORED_LABEL)
    labels[positions] = values
    return tokens.padded(labels, IGNORED_LABEL)


def assert_close(ours, theirs, tolerance):
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def assert_same_gradients(model, loss, reference, reference_loss):
    assert_close(loss, reference_loss, 1e-6 * max(1.0, reference_loss.item()))
    loss.backward()
    reference_loss.backward()
    ours = to_hugging_face({n: p.grad for n, p in model.named_parameters()}, model.head_name)
    theirs = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    assert theirs.keys() <= ours.keys()
    for name, gradient in theirs.items():
        assert_close(ours[name], gradient, 1e-6)


def mean(sums):
    return sum(total / num_items for total, num_items in sums.values())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("next_sentence", [True, False])
def test_pretraining_equals_the_reference(in_reference, shape, next_sentence):
    model = new_model("pretraining", shape, next_sentence=next_sentence)
    auto = ("AutoModelForMaskedLM", "AutoModelForPreTraining")[next_sentence]
    reference = in_reference(model, getattr(transformers, auto))
    batch = pretraining_batch()
    tokens = batch.tokens
    pairs = {"next_sentence_label": batch.next_sentence_labels} if next_sentence else {}
    labels = scattered(tokens, batch.masked_positions, batch.masked_labels)
    expected = reference(**padded(tokens), labels=labels, **pairs)
    mlm, nsp = model(tokens, batch.masked_positions)
    logits = expected.prediction_logits if next_sentence else expected.logits
    assert_close(mlm, logits[is_token(tokens)][batch.masked_positions], 1e-5)
    if next_sentence:
        assert_close(nsp, expected.seq_relationship_logits, 1e-5)
    assert_same_gradients(model, mean(model.loss_sums(batch)), reference, expected.loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_language_modelling_equals_the_reference(in_reference, shape):
    model = new_model("language_model", shape, causal=True)
    reference = in_reference(model, transformers.BertLMHeadModel)
    tokens = ragged_batch()
    batch = LabelledBatch.from_arrays(tokens, next_token_labels(tokens))
    labels = scattered(tokens, torch.arange(tokens.num_tokens), tokens.input_ids)
    expected = reference(**padded(tokens), labels=labels)
    ours = model(tokens, torch.arange(tokens.num_tokens))
    assert_close(ours, expected.logits[is_token(tokens)], 1e-5)
    assert_same_gradients(model, mean(model.loss_sums(batch)), reference, expected.loss)


CLASSES = {"num_labels": 3, "labels": ("a", "b", "c")}
OF_TEXTS = {  # of each head: its settings, its labels, and the name of the reference's problem
    "next_sentence": ({}, np.arange(len(LENGTHS)) % 2, None),
    "sequence_classification": (
        CLASSES, np.arange(len(LENGTHS)) % 3, "single_label_classification",
    ),
    "multi_label_classification": (
        CLASSES, np.random.default_rng(0).random((len(LENGTHS), 3)) < 0.5,
        "multi_label_classification",
    ),
    "regression": ({}, np.linspace(0, 1, len(LENGTHS)), "regression"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("head", OF_TEXTS)
def test_heads_for_whole_texts_equal_the_reference(in_reference, head, shape):
    settings, labels, problem = OF_TEXTS[head]
    model = new_model(head, shape, **settings)
    is_pair = head == "next_sentence"
    reference = in_reference(
        model,
        transformers.AutoModelForNextSentencePrediction
        if is_pair
        else transformers.AutoModelForSequenceClassification,
    )
    assert reference.config.problem_type == problem
    if settings:
        assert reference.config.id2label == {0: "a", 1: "b", 2: "c"}
    tokens = ragged_batch()
    batch = LabelledBatch.from_arrays(tokens, labels)
    expected = reference(**padded(tokens), labels=batch.labels)
    theirs = expected.logits[:, 0] if head == "regression" else expected.logits
    assert_close(model(tokens), theirs, 1e-5)
    assert_same_gradients(model, mean(model.loss_sums(batch)), reference, expected.loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_multiple_choice_equals_the_reference(in_reference, shape):
    model = new_model("multiple_choice", shape)
    reference = in_reference(model, transformers.AutoModelForMultipleChoice)
    tokens = ragged_batch()
    batch = LabelledBatch.from_arrays(tokens, [2, 0])
    questions = {name: value.unflatten(0, (2, 3)) for name, value in padded(tokens).items()}
    expected = reference(**questions, labels=batch.labels)
    assert_close(model(tokens), expected.logits.flatten(), 1e-5)
    assert_same_gradients(model, mean(model.loss_sums(batch)), reference, expected.loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_token_classification_equals_the_reference(in_reference, shape):
    model = new_model("token_classification", shape, num_labels=5)
    reference = in_reference(model, transformers.AutoModelForTokenClassification)
    tokens = ragged_batch()
    values = torch.arange(tokens.num_tokens) % 5
    values[::4] = IGNORED_LABEL
    batch = LabelledBatch.from_arrays(tokens, values)
    labels = scattered(tokens, torch.arange(tokens.num_tokens), values)
    expected = reference(**padded(tokens), labels=labels)
    assert_close(model(tokens), expected.logits[is_token(tokens)], 1e-5)
    assert_same_gradients(model, mean(model.loss_sums(batch)), reference, expected.loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_span_prediction_equals_the_reference(in_reference, shape):
    model = new_model("span_prediction", shape)
    reference = in_reference(model, transformers.AutoModelForQuestionAnswering)
    # The reference lets padding compete for the answer; among equal lengths there is none.
    for lengths, compares_loss in (((64, 3, 17), False), ((21, 21, 21), True)):
        tokens = ragged_batch(lengths)
        batch = LabelledBatch.from_arrays(tokens, [[0, 0], [1, 2], [2, 2]])
        expected = reference(
            **padded(tokens), start_positions=batch.labels[:, 0], end_positions=batch.labels[:, 1]
        )
        theirs = torch.stack((expected.start_logits, expected.end_logits), dim=-1)
        assert_close(model(tokens), theirs[is_token(tokens)], 1e-5)
        if compares_loss:
            loss = mean(model.loss_sums(batch))
            assert_same_gradients(model, loss, reference, expected.loss)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_encoder_and_its_pooler_equal_the_reference(in_reference, shape):
    model = new_model("encoder", shape)
    reference = in_reference(model, transformers.AutoModel)
    tokens = ragged_batch()
    expected = reference(**padded(tokens))
    hidden = model(tokens)
    assert_close(hidden, expected.last_hidden_state[is_token(tokens)], 1e-5)
    assert_close(model.pooler(hidden[tokens.first_positions]), expected.pooler_output, 1e-5)
