"""A number for a text or a pair of texts: similarity, stars, readability."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.model.catalogue import Model, SequenceRegressor
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Item,
    Items,
    Reading,
    TaskFamily,
    tfidf,
)
from pipelines.tasks.encoding import Sequences, encoded, outputs, text_fields
from pipelines.tasks.scoring import WeightedScore, number_scores

_FEWEST_NUMBERS, _OTHER_SCALE = 20, 3  # times as wide, without the outer tenths
_FINENESS = 100  # steps of float32 within a standard deviation of the numbers


class Regression(TaskFamily):
    """The number of each text, on the scale of the training texts."""

    score = "eval/pearson"
    guess = "mean value"
    curve: Mapping[str, str] = {"label_loss": "eval/loss"}
    model = SequenceRegressor
    schema = pa.schema({"text": pa.string(), "second_text": pa.string(), "value": pa.float64()})

    def item(self, record: Mapping[str, Any]) -> Item:
        label = record["label"]
        try:
            value = math.nan if "_" in label else float(label)  # Python takes 1_000 for a number
        except (ValueError, TypeError):  # a list has no number either
            value = math.nan
        if not math.isfinite(value):
            raise BadItemError("have a number as its label", repr(label or "none")[:60])
        return {**text_fields(record), "value": value}

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """No classes; raises UserError where all numbers are the same, or float32 confuses them."""
        values = np.array([item["value"] for item in train])
        if len(set(values)) < 2:
            raise UserError(
                f"all training texts have the same number, {values[0]}; check the label column"
            )
        # Numbers beyond float32 have no spacing, which is a NaN.
        if not np.spacing(np.abs(values).max(), dtype=np.float32) <= values.std() / _FINENESS:
            raise UserError(
                f"the numbers lie around {values.mean():.6g} and differ by {values.std():.3g} "
                "alone, which float32 cannot tell apart; subtract a constant from all of them"
            )
        check_scale(values, np.array([item["value"] for item in heldout]))
        return ()

    def check_scored(self, rows: Sequence[Item]) -> None:
        if len({item["value"] for item in rows}) < 2:
            raise UserError(
                f"all texts to evaluate on have the same number, {rows[0]['value']:g}; name the "
                "column of their numbers with --label-column, or give others"
            )

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """The range of the numbers, and the squared error of always answering their mean."""
        values = np.array([item["value"] for item in train.rows])
        expected = np.array([item["value"] for item in heldout.rows])
        return {
            "least": float(values.min()),
            "greatest": float(values.max()),
            "mean": float(values.mean()),
            "baseline/squared_error": float(np.mean((expected - values.mean()) ** 2)),
        }

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return tfidf.numbers(train, heldout)

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        return Sequences(
            encoded=encoded(items.rows, tokenizer, reading.max_tokens),
            labels=np.array([item["value"] for item in items.rows], np.float32),
        )

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The number of each text, as `bert_core.inference.answers.rate` answers."""
        texts = encoded(items.rows, tokenizer, reading.max_tokens)
        return Answers(outputs(model, texts, reading).tolist(), texts.num_truncated)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Pearson's and Spearman's correlation and the mean squared error."""
        return number_scores(answers.values, [item["value"] for item in items.rows])


def check_scale(train: np.ndarray, heldout: np.ndarray) -> None:
    """Raise UserError where the numbers of both parts cannot be of one scale."""
    if min(len(train), len(heldout)) < _FEWEST_NUMBERS:
        return
    spans = [np.quantile(part, 0.9) - np.quantile(part, 0.1) for part in (train, heldout)]
    if max(spans) > _OTHER_SCALE * min(spans) > 0:
        ranges = [f"{part.min():g} to {part.max():g}" for part in (train, heldout)]
        raise UserError(
            f"the numbers to train on are {ranges[0]}, and those held out {ranges[1]}; write both "
            "on one scale"
        )


FAMILY = Regression()
