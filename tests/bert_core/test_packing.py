"""Weights that stay packed from one inference to the next give the same answers, never old ones."""

import copy
import pickle

import numpy as np
import pytest
import torch

import bert_core as bc
from bert_core.training.optimization import AdamW
from bert_core.training.optimizer import OptimizationConfig
from tests.bert_core.test_asking import QUESTIONS, model_for
from tests.bert_core.test_inference import TEXTS, new_model
from tests.bert_core.test_inference import tokenizer as tokenizer


def vectors(model, tokenizer, texts=TEXTS, **settings):
    return bc.embed(model, tokenizer, texts, **settings).vectors


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_packed_model_answers_every_question_alike(tokenizer, question, precision):
    head, ask = QUESTIONS[question]
    expected = np.asarray(ask(model_for(head), tokenizer, precision=precision))
    packed = model_for(head).pack()
    tolerance = 1e-5 if precision == "float32" else 0.05
    for _ in range(2):
        found = np.asarray(ask(packed, tokenizer, precision=precision))
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_weights_that_were_changed_are_packed_again(tokenizer, precision):
    model, other = new_model("encoder").pack(), new_model("encoder")
    before = vectors(model, tokenizer, precision=precision)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    expected = vectors(other, tokenizer, precision=precision)
    model.load_state_dict(other.state_dict())
    found = vectors(model, tokenizer, precision=precision)
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert np.abs(found - before).max() > 0.05


def test_a_packed_model_is_trained_only_once_its_weights_are_released(tokenizer):
    model = new_model("encoder").pack()
    with pytest.raises(ValueError, match="nothing to train"):
        AdamW(model, OptimizationConfig(num_steps=2))
    vectors(model, tokenizer)
    model.requires_grad_(True)
    optimizer = AdamW(model, OptimizationConfig(num_steps=2))
    optimizer.arena.values.mul_(1.5)  # as a step does, which no parameter hears of
    expected = vectors(copy.deepcopy(model), tokenizer)
    np.testing.assert_allclose(vectors(model, tokenizer), expected, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_packed_model_is_copied_without_what_it_keeps(tokenizer, copied):
    model = new_model("encoder").pack()
    expected = vectors(model, tokenizer)
    other = copied(model)
    np.testing.assert_array_equal(vectors(other, tokenizer), expected)
    with torch.no_grad():
        other.encoder.layers[0].feed_forward.widen.weight.mul_(2)
    assert not np.allclose(vectors(other, tokenizer), expected)
    np.testing.assert_array_equal(vectors(model, tokenizer), expected)
