"""How good a registered classifier is on labelled texts of one's own."""

from typing import Any

from bert_core.inference import classify
from bert_core.model.catalogue import SequenceClassifier
from pipelines.core.errors import UserError
from pipelines.core.tracking.tracker import Tracker
from pipelines.registry.opening import open_model
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.files import read_labelled_file
from pipelines.stages.labelled.settings import LabelledFile
from pipelines.tasks.classification import figures_of, report_on


def evaluate_file(
    tracker: Tracker, reference: str, settings: LabelledFile
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and report of the classifier that `reference` names, on all rows of a file.

    Raises UserError for labels that the classifier was not trained on, for a file that cannot be
    read as labelled texts, and for a reference that names no classifier.
    """
    rows = read_labelled_file(settings, Tally())
    if not rows:
        raise UserError(f"{settings.path} must hold labelled texts, found none in it")
    expected = [label for _, label in rows]
    model, tokenizer = open_model(tracker, reference)
    if not isinstance(model, SequenceClassifier):
        raise UserError(f"{reference} must be a classifier, found a {model.head_name} model")
    texts = [text for text, _ in rows]
    answers = classify(model, tokenizer, texts)
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
