"""Any number of classes for a text or a pair of texts: topics, faults, intents."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from bert_core.model.catalogue import Model, MultiLabelClassifier
from bert_core.model.task_models import class_names
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
from pipelines.tasks.scoring import WeightedScore, by_label, f1, mean, mean_f1

_THRESHOLD = 0.5  # from which probability on a class is answered


class MultiLabel(TaskFamily):
    """The classes of each text, none, some or all, each for itself."""

    form: Form = "label_lists"
    score = "eval/micro_f1"
    guess = "most frequent labels"
    curve: Mapping[str, str] = {
        "label_loss": "eval/loss",
        "label_accuracy": "eval/decisions",
        "label_exact_match": "eval/exact_match",
    }
    model = MultiLabelClassifier
    schema = pa.schema(
        {"text": pa.string(), "second_text": pa.string(), "labels": pa.list_(pa.string())}
    )

    def item(self, record: Mapping[str, Any]) -> Item:
        return {**text_fields(record), "labels": _names(record["labels"])}

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """The labels of the training part; raises UserError where there are none to learn."""
        labels = sorted(self.classes_of(train))
        if not labels:
            raise UserError(
                "a classifier of several labels a text needs at least one label, found none on "
                f"{len(train)} texts; check the label column and label_separator"
            )
        check_classes(labels, len(train), "texts", "the label column and label_separator")
        check_known(self.classes_of(heldout), labels)
        return tuple(labels)

    def classes_of(self, items: Sequence[Item]) -> set[str]:
        return {label for item in items for label in item["labels"]}

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """Texts by label, and the best scores of answering the same to every text."""
        counts = by_split(
            train, heldout, lambda rows: Counter(label for item in rows for label in item["labels"])
        )
        half, size = len(train.rows) / 2, len(heldout.rows)
        common = [label for label in train.labels if counts["train"][label] > half]
        usual = common or [max(train.labels, key=lambda label: counts["train"][label])]
        same, nothing = (self.figures(Answers([each] * size, 0), heldout) for each in (usual, []))
        return {
            "items_by_label": {s: dict(sorted(count.items())) for s, count in counts.items()},
            "baseline/micro_f1": same["eval/micro_f1"],
            "baseline/exact_match": max(same["eval/exact_match"], nothing["eval/exact_match"]),
        }

    def baselines(self, train: Items, heldout: Items) -> Baselines:
        return tfidf.label_sets(train, heldout)

    def examples(self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading) -> Sequences:
        """The texts, cut to what is read or in windows, each with its text's labels."""
        labels = _table([item["labels"] for item in items.rows], items.labels)
        windows = windows_of(items.rows, tokenizer, reading)
        return Sequences(encoded=windows.encoded, labels=labels[windows.texts])

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """The labels of each text, as `inference.answers.assign_labels` answers."""
        assert isinstance(model, MultiLabelClassifier)
        reading = reading._replace(text_windows=model.reads_windows)
        windows = windows_of(items.rows, tokenizer, reading)
        probabilities = mean_probabilities(model, windows, torch.sigmoid, reading)
        names = class_names(model)
        chosen = probabilities >= _THRESHOLD
        values = [[names[index] for index in np.flatnonzero(row)] for row in chosen]
        # Each decision on a label is an answer of its own.
        decided = np.stack([1 - probabilities, probabilities], axis=-1).reshape(-1, 2)
        classes = _table([item["labels"] for item in items.rows], names).reshape(-1).astype(int)
        return Answers(values, windows.encoded.num_truncated, Probable(decided, classes))

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """Micro and macro F1, and the share of texts all of whose labels are right."""
        predicted = _table(answers.values, items.labels)
        actual = _table([item["labels"] for item in items.rows], items.labels)
        both = predicted & actual
        return {
            "eval/micro_f1": f1(predicted.sum(axis=1), actual.sum(axis=1), both.sum(axis=1)),
            "eval/macro_f1": mean_f1(predicted.astype(int), actual.astype(int), both.astype(int)),
            "eval/exact_match": mean((predicted == actual).all(axis=1)),
        }

    def report(self, answers: Answers, items: Items) -> dict[str, Any]:
        from sklearn.metrics import precision_recall_fscore_support

        expected = [item["labels"] for item in items.rows]
        columns = precision_recall_fscore_support(
            _table(expected, items.labels), _table(answers.values, items.labels), zero_division=0.0
        )
        return {"labels": list(items.labels), "by_label": by_label(items.labels, columns)}


FAMILY = MultiLabel()


def _names(labels: Any) -> list[str]:
    if labels is None:
        raise BadItemError("have its labels, or an empty list where there are none", "none")
    if not isinstance(labels, list):
        raise BadItemError(
            "have its labels in a list (JSON lines, where a label may have any sign), or in a text "
            "between what label_separator names (a comma)",
            repr(labels)[:60],
        )
    if not all(isinstance(label, str) for label in labels):
        must = 'have the names of its labels as texts, such as ["3"]'
        raise BadItemError(must, f"{labels!r:.60}")
    if len(set(labels)) < len(labels) or set(labels) == {"0", "1"}:
        raise BadItemError(
            "name each of its labels once, and not with zeros and ones", f"{labels!r:.60}"
        )
    return sorted(labels)


def _table(labels: Sequence[Sequence[str]], names: Sequence[str]) -> np.ndarray:
    """[N, C] bool."""
    index = {name: place for place, name in enumerate(names)}
    table = np.zeros((len(labels), len(names)), np.bool_)
    for row, chosen in enumerate(labels):
        table[row, [index[label] for label in chosen]] = True
    return table
