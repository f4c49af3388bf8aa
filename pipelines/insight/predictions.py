"""Answers of models, for people and scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bert_core.inference import Candidate, classify, fill_mask
from bert_core.inference.texts import Text
from bert_core.model.catalogue import (
    Model,
    PretrainingModel,
    SequenceClassifier,
    described,
)
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.registry.opening import OpenedModel

ModelType = TypeVar("ModelType", bound=Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The label of a text."""

    text: str
    label: str
    probability: float
    probabilities: dict[str, float]  # of every label


def predict(opened: OpenedModel, called: str, texts: Sequence[Text]) -> list[Prediction]:
    """Label each text with a classifier; raises UserError for another kind of model."""
    model, tokenizer = _as(SequenceClassifier, opened, called)
    answers = classify(model, tokenizer, texts)
    names = model.labels or tuple(str(index) for index in range(model.num_labels))
    return [
        Prediction(
            text=text if isinstance(text, str) else " | ".join(text),
            label=label,
            probability=float(row.max()),
            probabilities=dict(zip(names, row.tolist(), strict=True)),
        )
        for text, label, row in zip(texts, answers.labels, answers.probabilities, strict=True)
    ]


def fill(opened: OpenedModel, called: str, text: str, top_k: int) -> list[list[Candidate]]:
    """For each [MASK] of `text`, the `top_k` likeliest pieces in the eyes of an encoder.

    Raises UserError for another kind of model, for a text longer than the model reads, and for a
    `top_k` beyond its vocabulary.
    """
    model, tokenizer = _as(PretrainingModel, opened, called)
    if top_k > tokenizer.vocab_size:
        raise UserError(
            f"{called} has {tokenizer.vocab_size:,} pieces to choose from, asked were the "
            f"{top_k:,} likeliest; ask for fewer"
        )
    try:
        return fill_mask(model, tokenizer, text, top_k=top_k)
    except ValueError as error:  # a text longer than the model reads
        raise UserError(str(error)) from error


def _as(
    expected: type[ModelType], opened: OpenedModel, called: str
) -> tuple[ModelType, WordPieceTokenizer]:
    model, tokenizer = opened
    if not isinstance(model, expected):
        raise UserError(
            f"{called} must be {described(expected.head_name)} for this, found "
            f"{described(model.head_name)}; see `bertsmith models`"
        )
    return model, tokenizer
