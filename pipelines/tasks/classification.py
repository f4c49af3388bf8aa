"""One class for a text or a pair of texts: sentiment, spam, paraphrase, entailment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.model.catalogue import Model, SequenceClassifier
from bert_core.model.task_models import class_names
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.tasks import (
    Answers,
    BadItemError,
    Baselines,
    Item,
    Items,
    Probable,
    Reading,
    TaskFamily,
    by_split,
    tfidf,
)
from pipelines.tasks.encoding import (
    Sequences,
    check_classes,
    check_known,
    mean_probabilities,
    text_fields,
    windows_of,
)
from pipelines.tasks.scoring import WeightedScore, class_report, class_scores


class Classification(TaskFamily):
    """One label for each text, from the labels that the training texts have."""

    score = "eval/accuracy"
    guess = "majority class"
    curve: Mapping[str, str] = {"label_loss": "eval/loss", "label_accuracy": "eval/accuracy"}
    model = SequenceClassifier
    schema = pa.schema({"text": pa.string(), "second_text": pa.string(), "label": pa.string()})

    def item(self, record: Mapping[str, Any]) -> Item:
        """A text with its label; raises BadItemError where it has none, or several.

        Empty, null and NaN are no label.
        """
        label = record["label"]
        if not isinstance(label, str):
            raise BadItemError("have one class as its label", repr(label)[:60])
        if not label:
            raise BadItemError("have a label", "none")
        return {**text_fields(record), "label": label}

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """The labels of the training part; raises UserError where it has fewer than two."""
        labels = sorted(self.classes_of(train))
        if len(labels) < 2:
            raise UserError(
                f"a classifier needs at least two labels to tell apart, found {labels}; "
                "check the label column"
            )
        if all(map(_is_number, labels)) and any(map(_has_fraction, labels)):
            raise UserError(
                f"the labels are numbers with fractions ({', '.join(labels[:5])}), not classes; "
                "learn them as numbers with dataset.family=regression, or write the classes as "
                "names or whole numbers"
            )
        check_classes(labels, len(train), "texts", "which column holds the label")
        check_known(self.classes_of(heldout), labels)
        return tuple(labels)

    def classes_of(self, items: Sequence[Item]) -> set[str]:
        return {item["label"] for item in items}

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """Texts by label, and the accuracy of always answering the most frequent one."""
        counts = by_split(train, heldout, lambda rows: Counter(item["label"] for item in rows))
        majority = min(train.labels, key=lambda label: (-counts["train"][label], label))
        return {
            "items_by_label": {s: dict(sorted(count.items())) for s, count in counts.items()},
            "majority_label": majority,
            "baseline/accuracy": counts["heldout"][majority] / len(heldout.rows),
        }

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return tfidf.classes(train, heldout)

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """The texts, cut to what is read or in windows, each with its text's label."""
        index = {label: place for place, label in enumerate(items.labels)}
        labels = np.array([index[item["label"]] for item in items.rows])
        windows = windows_of(items.rows, tokenizer, reading)
        return Sequences(encoded=windows.encoded, labels=labels[windows.texts])

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The label of each text, as `bert_core.inference.answers.classify` answers."""
        assert isinstance(model, SequenceClassifier)
        reading = reading._replace(text_windows=model.reads_windows)
        windows = windows_of(items.rows, tokenizer, reading)
        probabilities = mean_probabilities(
            model, windows, lambda logits: logits.softmax(dim=-1), reading
        )
        names = class_names(model)
        values = [names[index] for index in probabilities.argmax(axis=1)]
        classes = np.array([names.index(item["label"]) for item in items.rows])
        return Answers(values, windows.encoded.num_truncated, Probable(probabilities, classes))

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Accuracy, macro F1 and Matthews correlation."""
        expected = [item["label"] for item in items.rows]
        return class_scores(answers.values, expected, items.labels)

    def report(self, answers: Answers, items: Items) -> dict[str, Any]:
        """Precision, recall, F1 and count of each label, and the confusion matrix."""
        expected = [item["label"] for item in items.rows]
        return class_report(answers.values, expected, items.labels)


FAMILY = Classification()


def _has_fraction(label: str) -> bool:
    return float(label.replace(",", ".")) % 1 != 0


def _is_number(label: str) -> bool:
    try:
        float(label.replace(",", "."))
    except ValueError:
        return False
    return True
