"""Scores of classes: accuracy, F1, Matthews correlation; a table by class, a confusion matrix.

All from scikit-learn, but accuracy, which is a share.
"""

from collections.abc import Sequence
from typing import Any


def class_figures(answered: Sequence[str], expected: Sequence[str]) -> dict[str, float]:
    """Accuracy, macro F1 and the Matthews correlation of the answered classes.

    Of two classes also the F1 of the second, as GLUE scores MRPC and QQP, whose classes are 0 and
    1.
    """
    from sklearn.metrics import f1_score, matthews_corrcoef  # takes a second

    num_correct = sum(a == b for a, b in zip(answered, expected, strict=True))
    figures = {
        "eval/accuracy": num_correct / len(expected),
        "eval/macro_f1": float(f1_score(expected, answered, average="macro", zero_division=0.0)),
        "eval/matthews": float(matthews_corrcoef(expected, answered)),
    }
    classes = sorted({*answered, *expected})
    if len(classes) == 2:
        figures["eval/f1"] = float(
            f1_score(expected, answered, pos_label=classes[1], zero_division=0.0)
        )
    return figures


def class_report(answered: Sequence[str], expected: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 and count of each class, and the confusion matrix.

    The matrix has a row per expected and a column per answered class, in the order of `labels`.
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    labels = sorted({*answered, *expected})
    columns = precision_recall_fscore_support(expected, answered, labels=labels, zero_division=0.0)
    matrix = confusion_matrix(expected, answered, labels=labels)
    return {"labels": labels, "by_label": by_label(labels, columns), "confusion": matrix.tolist()}


def by_label(labels: Sequence[str], columns: Sequence[Any]) -> list[dict[str, Any]]:
    """A row a class, from scikit-learn's four columns."""
    return [
        {"label": label, "precision": float(p), "recall": float(r), "f1": float(f), "items": int(n)}
        for label, p, r, f, n in zip(labels, *columns, strict=True)
    ]
