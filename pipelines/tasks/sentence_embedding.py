"""Vectors of texts, near each other where texts mean the same: search, clusters, duplicates."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.batch import LabelledBatch, RaggedBatch
from bert_core.config import EmbeddingConfig
from bert_core.inference.texts import EncodedTexts, encode_texts
from bert_core.model.catalogue import Model, SentenceEncoder
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Form,
    Item,
    Items,
    Reading,
    TaskFamily,
    tfidf,
)
from pipelines.tasks.encoding import check_texts, outputs
from pipelines.tasks.regression import check_scale
from pipelines.tasks.scoring import WeightedScore, number_scores

# How near a premise and a hypothesis are, for the score.
_CLASSES = {"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}
_PAIR = ("text", "second_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """N pairs with a label each, some with a third text that is known not to fit.

    A batch holds the first texts, then the second ones, then the third ones that there are.
    """

    encoded: EncodedTexts  # N first texts, N second ones, then the others
    labels: np.ndarray  # [N], or [N, 2] numbers of both texts
    others: Sequence[int | None]  # of each pair: where its third text is

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: np.ndarray) -> LabelledBatch:
        """The examples at `indices`, in that order."""
        pairs = np.asarray(indices).tolist()
        places = [*pairs, *(len(self) + pair for pair in pairs)]
        places += [place for pair in pairs if (place := self.others[pair]) is not None]
        tokens = RaggedBatch.from_sequences([self.encoded.sequences[place] for place in places])
        return LabelledBatch.from_arrays(tokens, self.labels[indices])


class SentenceEmbedding(TaskFamily):
    """Pairs of texts, each read for itself, and how near their vectors are to be.

    Pairs with numbers (STS-B) learn them as cosines: the least number that is learned is 0, the
    greatest 1. Of pairs with the classes of natural language inference the entailed ones are
    learned, each with a contradiction of the same premise where there is one; so are pairs without
    labels. Of all second texts of a micro-batch the first text's own is to be the nearest; those of
    pairs that share a text with it do not count.
    """

    form: Form = "pairs"
    score = "eval/spearman"
    curve: Mapping[str, str] = {"label_loss": "eval/loss"}
    model = SentenceEncoder
    schema = pa.schema(
        {
            "text": pa.string(),
            "second_text": pa.string(),
            "other_text": pa.string(),
            "value": pa.float64(),
            "is_number": pa.bool_(),
        }
    )

    def item(self, record: Mapping[str, Any]) -> Item:
        """A pair; raises BadItemError where its label is neither a number nor one of the classes.

        A pair without a label belongs together. A -1 is no similarity: it marks a hidden or missing
        class of natural language inference.
        """
        check_texts(record, "text", "second_text", "negative", "label")
        if not record["second_text"]:
            raise BadItemError("have both texts of its pair", "an empty second one")
        if record.get("negative") == record["second_text"]:
            raise BadItemError("have a negative that is another text than its second one", "it")
        label = record.get("label")
        texts = {
            "text": record["text"],
            "second_text": record["second_text"],
            "other_text": record.get("negative") or None,
        }
        if label is None or label.lower() in _CLASSES:
            value = 1.0 if label is None else _CLASSES[label.lower()]
            return {**texts, "value": value, "is_number": False}
        try:
            value = math.nan if "_" in label else float(label)  # Python takes 1_0 for a number
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value == -1:
            raise BadItemError(
                f"have a number, {', '.join(_CLASSES)} as its label", repr(label[:60])
            )
        return {**texts, "value": value, "is_number": True}

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """No classes; raises UserError where nothing can be learned or measured."""
        if all(item["text"] == item["second_text"] for item in train):
            raise UserError("both texts of every pair are the same; check the columns")
        if len({item["is_number"] for item in train}) > 1:
            raise UserError(
                "some training pairs have numbers and some have none; check the label column"
            )
        if all(item["is_number"] for item in train) and len({i["value"] for i in train}) < 2:
            raise UserError(
                f"all training pairs have the number {train[0]['value']:g}; leave the label column "
                "out if all pairs belong together"
            )
        _check_together(train, "train on")
        self.check_scored(heldout)
        if train[0]["is_number"]:
            numbers = [np.array([item["value"] for item in part]) for part in (train, heldout)]
            if {*numbers[0]} <= {0.0, 1.0, 2.0} and len({*numbers[0]}) == 3:
                raise UserError(
                    "the pairs have the numbers 0, 1 and 2: write the names of their classes "
                    f"({', '.join(_CLASSES)}), or similarities on another scale"
                )
            if heldout[0]["is_number"]:
                check_scale(*numbers)
        return ()

    def check_scored(self, rows: Sequence[Item]) -> None:
        _check_together(rows, "evaluate on")
        if len({item["is_number"] for item in rows}) > 1:
            raise UserError(
                "some pairs to evaluate on have numbers and some have classes or no label; give "
                "all of them numbers, or all of them classes, in the column that --label-column "
                "names"
            )
        if len({item["value"] for item in rows}) < 2:
            raise UserError(
                "the pairs to evaluate on are all equally similar; name the column of their "
                "numbers or classes with --label-column, or give others (in a run with --heldout)"
            )

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """How many pairs are learned from, and how many of these have a third text."""
        learned = _learned(train.rows)
        others = _others(learned, train.rows)
        return {
            "pairs_learned_from": len(learned),
            "pairs_with_another_text": len(others) - others.count(None),
        }

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return tfidf.cosines(train, heldout)

    def on_one_scale(self, learned: Items, measured: Items) -> tuple[Items, Items]:
        """Numbers as cosines: 0 for the least and 1 for the greatest number that is learned.

        Numbers that are measured beside learned classes have a scale of their own.
        """
        for part, purpose in ((learned, "learned from"), (measured, "set aside for validation")):
            if not _learned(part.rows):
                raise UserError(
                    f"none of the {len(part.rows)} pairs that are {purpose} belong together; set "
                    "another number with finetuning.validation_items, or leave that and "
                    "finetuning.patience out"
                )
        numbered = [part for part in (learned, measured) if part.rows[0]["is_number"]]
        if not numbered:
            return learned, measured
        numbers = _numbers(numbered[0])
        least, width = numbers.min(), np.ptp(numbers)
        if not width:
            raise UserError(
                f"all {len(numbers)} pairs that are learned from have the number {least:g}, since "
                "the others are set aside for validation; leave finetuning.patience and "
                "finetuning.validation_items out, or give more pairs"
            )

        def cosines(part: Items) -> Items:
            if not part.rows[0]["is_number"]:
                return part
            values = ((_numbers(part) - least) / width).tolist()
            rows = zip(part.rows, values, strict=True)
            return part._replace(rows=[{**item, "value": value} for item, value in rows])

        return cosines(learned), cosines(measured)

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Pairs:
        """The pairs to learn from, each text cut to what is read; numbers are cosines by now."""
        learned = _learned(items.rows)
        if learned[0]["is_number"]:
            labels = _numbers(items)
        else:
            numbers: dict[str, int] = {}
            labels = np.array(
                [
                    [numbers.setdefault(item[name], len(numbers)) for name in _PAIR]
                    for item in learned
                ]
            )
        texts = [item[name] for name in _PAIR for item in learned]
        places: list[int | None] = []
        for other in _others(learned, items.rows):
            places.append(None if other is None else len(texts))
            texts += [] if other is None else [other]
        encoded = encode_texts(tokenizer, texts, reading.max_tokens)
        return Pairs(encoded=encoded, labels=labels, others=places)

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The cosine of each pair, of vectors as `inference.pretrained.embed` gives them."""
        how = model.embedding or EmbeddingConfig()
        texts = [item[name] for name in _PAIR for item in items.rows]
        if how.lowercase:
            texts = [text.lower() for text in texts]
        longest = min(reading.max_tokens, how.max_tokens or reading.max_tokens)
        encoded = encode_texts(tokenizer, texts, longest)
        first, second = np.split(outputs(model, encoded, reading, model.config.hidden_size), 2)
        return Answers((first * second).sum(axis=1).tolist(), encoded.num_truncated)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Spearman's and Pearson's correlation of the cosines with the numbers."""
        known = number_scores(answers.values, [item["value"] for item in items.rows])
        return {name: known[name] for name in ("eval/spearman", "eval/pearson")}


def _check_together(items: Sequence[Item], purpose: str) -> None:
    """Raise UserError where none of the pairs belong together and none has a number."""
    if not any(item["is_number"] or item["value"] == 1.0 for item in items):
        raise UserError(
            f"none of the {len(items)} pairs to {purpose} belong together; label such pairs "
            "entailment"
        )


def _numbers(items: Items) -> np.ndarray:
    """[N] float32."""
    return np.array([item["value"] for item in items.rows], np.float32)


def _learned(items: Sequence[Item]) -> Sequence[Item]:
    """Pairs with numbers, or those that belong together."""
    if items[0]["is_number"]:
        return items
    return [item for item in items if item["value"] == 1.0]


def _others(learned: Sequence[Item], items: Sequence[Item]) -> list[str | None]:
    """For each pair that belongs together a text that does not: its own, or a contradiction."""
    if learned and learned[0]["is_number"]:
        return [None] * len(learned)
    contradicting: dict[str, str] = {}
    for item in items:
        if item["value"] == 0.0:
            contradicting.setdefault(item["text"], item["second_text"])
    return [item["other_text"] or contradicting.get(item["text"]) for item in learned]


FAMILY = SentenceEmbedding()
