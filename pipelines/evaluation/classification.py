"""Held-out figures of a classifier, and the report on its answers."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bert_core.inference import Classified, classify
from bert_core.models import SequenceClassifier
from bert_core.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.errors import UserError
from pipelines.registry.listing import locate
from pipelines.stage import StageContext
from pipelines.tasks.classification import names_of, read_split
from pipelines.tasks.labelled_file import read_labelled_file
from pipelines.tasks.settings import LabelledFileTask
from pipelines.tracking import Tracker

VERSION = 1
REPORT_FILE = "report.json"


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


def build_evaluation(classifier: Artifact, task: Artifact, context: StageContext) -> Artifact:
    """The report on a classifier's held-out answers, as the artifact's `report.json`."""
    return context.store.get_or_build(
        "evaluation",
        version=VERSION,
        settings={},
        inputs={"classifier": classifier, "task": task},
        build=partial(_evaluate, classifier, task),
    )


def evaluate_file(
    tracker: Tracker, reference: str, settings: LabelledFileTask
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and report of the classifier that `reference` names, on all rows of a file.

    Raises UserError for labels that the classifier was not trained on.
    """
    rows = list(read_labelled_file(settings))
    expected = [label for _, label in rows]
    model, answers = _answers(locate(tracker, reference), [text for text, _ in rows])
    unknown = sorted(set(expected) - set(model.labels or ()))
    if unknown:
        raise UserError(
            f"every label of {settings.path} must be one that {reference} was trained on "
            f"({', '.join(model.labels or ())[:200]}), found {', '.join(unknown[:5])}"
        )
    commonest = max(set(expected), key=lambda label: (expected.count(label), label))
    figures = {
        **figures_of(answers.labels, expected),
        "baseline/accuracy": expected.count(commonest) / len(expected),
        "texts": len(rows),
        "texts_truncated": answers.num_truncated,
    }
    return figures, report_on(answers.labels, expected)


def _evaluate(classifier: Artifact, task: Artifact, draft: Draft) -> Built:
    heldout = read_split(task, "heldout")
    _, answers = _answers(classifier.local_folder(), heldout.texts)
    expected = names_of(heldout.labels, task)
    with draft.file(REPORT_FILE) as target:
        report = report_on(answers.labels, expected)
        target.path.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    statistics = {
        **figures_of(answers.labels, expected),
        "baseline/accuracy": task.statistics["baseline/accuracy"],
        "texts": len(heldout.texts),
        "texts_truncated": answers.num_truncated,
    }
    return Built([REPORT_FILE], statistics)


def _answers(folder: Path, texts: Sequence[str]) -> tuple[SequenceClassifier, Classified]:
    model = load_model(folder)
    if not isinstance(model, SequenceClassifier):
        raise UserError(f"{folder} must hold a classifier, found a {model.head_name} model")
    return model, classify(model, WordPieceTokenizer.from_directory(folder), texts)
