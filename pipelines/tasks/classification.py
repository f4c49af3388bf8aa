"""Single-text classification: its scores, and the report on its answers."""

from collections.abc import Sequence
from typing import Any


def figures_of(answered: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """Accuracy and macro F1 of the answered labels."""
    from sklearn.metrics import f1_score  # takes a second that other stages need not spend

    num_correct = sum(a == b for a, b in zip(answered, expected, strict=True))
    macro_f1 = f1_score(expected, answered, average="macro", zero_division=0.0)
    return {"eval/accuracy": num_correct / len(expected), "eval/macro_f1": float(macro_f1)}


def report_on(answered: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 and count of each label, and the confusion matrix.

    The matrix has a row per expected and a column per answered label, in the order of `labels`.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels = sorted({*answered, *expected})
    columns = precision_recall_fscore_support(expected, answered, labels=labels, zero_division=0.0)
    by_label = [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "texts": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]
    matrix = confusion_matrix(expected, answered, labels=labels)
    return {"labels": labels, "by_label": by_label, "confusion": matrix.tolist()}
