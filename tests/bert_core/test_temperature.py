"""One temperature for all logits: that of the least loss, folded into the last layer's weights."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import MODELS, build_model
from bert_core.training.temperature import (
    TEMPERATURES,
    best_temperature,
    divide_logits,
    losses_by_temperature,
)

CONFIG = encoder_config("tiny", 50, max_position_embeddings=16)
HEADS: dict[str, dict[str, Any]] = {
    "sequence_classification": {"num_labels": 3},
    "multi_label_classification": {"num_labels": 3},
    "token_classification": {"num_labels": 3},
    "multiple_choice": {},
    "span_prediction": {},
}


def batch_of(head: str, seed: int = 0) -> LabelledBatch:
    """Twelve sequences of eight tokens with random labels of the head."""
    random = np.random.default_rng(seed)
    tokens = RaggedBatch.from_sequences([random.integers(5, 50, 8) for _ in range(12)], [8] * 12)
    labels: dict[str, Any] = {
        "sequence_classification": random.integers(0, 3, 12),
        "multi_label_classification": random.integers(0, 2, (12, 3)).astype(np.float32),
        "token_classification": random.integers(0, 3, 96),
        "multiple_choice": random.integers(0, 3, 4),
        "span_prediction": random.integers(0, 8, (12, 2)),
    }
    return LabelledBatch.from_arrays(tokens, labels[head])


@pytest.mark.parametrize("head", HEADS)
def test_the_weights_divide_the_logits_and_change_no_answer(head: str) -> None:
    torch.manual_seed(0)
    model, batch = build_model(head, CONFIG, **HEADS[head]), batch_of(head)
    with torch.inference_mode():
        before = model.answers(batch).float()
    divide_logits(model, 2.5)
    with torch.inference_mode():
        after = model.answers(batch).float()
    torch.testing.assert_close(after, before / 2.5)
    assert torch.equal(after.argmax(dim=-1), before.argmax(dim=-1))


@pytest.mark.parametrize("head", sorted(MODELS))
def test_only_logits_of_probabilities_have_a_temperature(head: str) -> None:
    assert getattr(MODELS[head], "has_probabilities", False) == (head in HEADS)
    if head in ("regression", "sentence_embedding"):
        with pytest.raises(ValueError, match="gives no probabilities"):
            divide_logits(build_model(head, CONFIG), 2.0)


@pytest.mark.parametrize("head", HEADS)
def test_the_losses_are_those_of_a_model_whose_weights_were_divided(head: str) -> None:
    torch.manual_seed(0)
    model, batch = build_model(head, CONFIG, **HEADS[head]), batch_of(head)
    losses = losses_by_temperature(model, [(1, batch)], 3)
    assert not losses[0].any() and not losses[2].any()
    place = 140
    divide_logits(model, float(TEMPERATURES[place]))
    total = model.evaluation_sums(batch)["label_loss"].total
    assert losses[1, place] == pytest.approx(float(total), rel=1e-5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_logits_that_are_too_large_or_small_get_the_temperature_that_they_lack(
    scale: float,
) -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(4000, 3)) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    classes = np.array([random.choice(3, p=each) for each in probabilities])

    def loss(temperature: float) -> float:
        rows = torch.from_numpy(logits * scale / temperature)
        return float(torch.nn.functional.cross_entropy(rows, torch.from_numpy(classes),
                                                       reduction="sum"))  # fmt: skip

    temperature = best_temperature(np.array([loss(each) for each in TEMPERATURES]))
    reference = minimize_scalar(loss, bounds=(0.1, 10), method="bounded").x
    assert temperature == pytest.approx(reference, rel=0.02)
    assert temperature == pytest.approx(scale, rel=0.1)


def test_a_few_answers_that_are_all_right_ask_for_no_boundless_certainty() -> None:
    rows = torch.tensor([[2.0, 0.0]] * 50)
    right = torch.zeros(50, dtype=torch.long)
    losses = np.array([
        float(torch.nn.functional.cross_entropy(rows / each, right, reduction="sum"))
        for each in TEMPERATURES
    ])  # fmt: skip
    assert losses.argmin() == 0  # the likeliest one is the least of all
    assert 0.25 < best_temperature(losses) < 0.7
