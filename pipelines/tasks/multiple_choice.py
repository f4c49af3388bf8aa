"""Which of several texts goes with another one: SWAG's endings, CODAH's completions."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch.nn.utils.rnn import pad_sequence

from bert_core.inference.texts import EncodedTexts, encode_texts
from bert_core.model.catalogue import Model, MultipleChoice
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Form,
    Item,
    Items,
    Probable,
    Reading,
    TaskFamily,
    tfidf,
)
from pipelines.tasks.encoding import Sequences, check_texts, outputs
from pipelines.tasks.scoring import WeightedScore, mean

_UNLIKELY: Final = 1e-3


class Choices(TaskFamily):
    """One of the choices of each question, of which all have as many."""

    form: Form = "choices"
    score = "eval/accuracy"
    guess = "chance"
    curve: Mapping[str, str] = {"label_loss": "eval/loss", "label_accuracy": "eval/accuracy"}
    model = MultipleChoice
    schema = pa.schema(
        {"text": pa.string(), "choices": pa.list_(pa.string()), "answer": pa.int64()}
    )

    def item(self, record: Mapping[str, Any]) -> Item:
        """A text with its choices and the index of the right one, from 0.

        Raises BadItemError where there are not two choices, or the label is no index of them.
        """
        check_texts(record, "text")
        choices, label = record["choices"], record["label"]
        if not isinstance(choices, list) or len(choices) < 2:
            raise BadItemError("have a list of at least two choices", f"{choices!r:.60}")
        if not all(isinstance(choice, str) and choice for choice in choices):
            raise BadItemError("have a text in each of its choices", f"{choices!r:.60}")
        if len(set(choices)) == 1:
            raise BadItemError("have different choices", f"{choices[0]!r:.60} alone")
        if not (isinstance(label, str) and label.isdecimal() and int(label) < len(choices)):
            raise BadItemError(
                "have the index of the right choice, from 0, as its label",
                f"{str(label)[:60]!r} for {len(choices)} choices",
            )
        return {"text": record["text"], "choices": choices, "answer": int(label)}

    def content(self, item: Item) -> str:
        return "\n".join([item["text"], *item["choices"]])

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """No classes; raises UserError where questions have different numbers of choices."""
        numbers = Counter(len(item["choices"]) for item in (*train, *heldout))
        if len(numbers) > 1:
            raise UserError(
                "all questions need the same number of choices, found "
                + ", ".join(f"{count} with {number}" for number, count in sorted(numbers.items()))
                + "; leave out the others"
            )
        for part in (train, heldout):
            self.check_scored(part)
        return ()

    def check_scored(self, rows: Sequence[Item]) -> None:
        # By chance the first choice is missing among so many answers once in a thousand times.
        chance = math.prod(1 - 1 / len(item["choices"]) for item in rows)
        if chance < _UNLIKELY and min(item["answer"] for item in rows) > 0:
            raise UserError(
                f"the first choice, 0, is the answer to none of {len(rows)} questions; count "
                "the choices from 0, or shuffle them"
            )

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """How many choices a question has, and the accuracy of choosing at random."""
        num_choices = len(train.rows[0]["choices"])
        return {"choices": num_choices, "baseline/accuracy": 1 / num_choices}

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return tfidf.choices(train, heldout)

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """The question with each of its choices, cut to what is read."""
        return Sequences(
            encoded=_encoded(items, tokenizer, reading.max_tokens),
            labels=np.array([item["answer"] for item in items.rows]),
            per_example=len(items.rows[0]["choices"]),
        )

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The index of the choice that fits each question best, from 0."""
        texts = _encoded(items, tokenizer, reading.max_tokens)
        ends = np.cumsum([len(item["choices"]) for item in items.rows])[:-1]
        scores = np.split(outputs(model, texts, reading), ends)
        values = [int(row.argmax()) for row in scores]
        # A person's file may have more choices for some questions: those that others lack get 0.
        padded = pad_sequence(
            [torch.from_numpy(row) for row in scores], batch_first=True, padding_value=-torch.inf
        )
        probabilities = padded.softmax(dim=1).numpy()
        classes = np.array([item["answer"] for item in items.rows])
        return Answers(values, texts.num_truncated, Probable(probabilities, classes))

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        rows = zip(items.rows, answers.values, strict=True)
        return {"eval/accuracy": mean([item["answer"] == value for item, value in rows])}


FAMILY = Choices()


def _encoded(items: Items, tokenizer: WordPieceTokenizer, max_tokens: int) -> EncodedTexts:
    pairs = [(item["text"], choice) for item in items.rows for choice in item["choices"]]
    return encode_texts(tokenizer, pairs, max_tokens)
