"""Stage: what a classifier answers on held-out texts, label by label."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bert_core.inference import Classified, classify
from bert_core.model.catalogue import SequenceClassifier
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.core.errors import UserError
from pipelines.core.stage import StageContext
from pipelines.stages.evaluation import EVALUATION
from pipelines.stages.labelled.stage import names_of, read_split
from pipelines.tasks.classification import figures_of, report_on

REPORT_FILE = "report.json"


def build_evaluation(classifier: Artifact, labelled: Artifact, context: StageContext) -> Artifact:
    """The report on a classifier's held-out answers, as the artifact's `report.json`."""
    return context.store.get_or_build(
        EVALUATION.kind,
        version=EVALUATION.version,
        settings={},
        inputs={"classifier": classifier, "labelled": labelled},
        build=partial(_evaluate, classifier, labelled),
    )


def _evaluate(classifier: Artifact, labelled: Artifact, draft: Draft) -> Built:
    heldout = read_split(labelled, "heldout")
    _, answers = answers_of(classifier.local_folder(), heldout.texts)
    expected = names_of(heldout.labels, labelled)
    with draft.file(REPORT_FILE) as target:
        report = report_on(answers.labels, expected)
        target.path.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    statistics = {
        **figures_of(answers.labels, expected),
        "baseline/accuracy": labelled.statistics["baseline/accuracy"],
        "texts": len(heldout.texts),
        "texts_truncated": answers.num_truncated,
    }
    return Built([REPORT_FILE], statistics)


def answers_of(folder: Path, texts: Sequence[str]) -> tuple[SequenceClassifier, Classified]:
    """The classifier in a model folder, and what it answers; UserError for another model."""
    model = load_model(folder)
    if not isinstance(model, SequenceClassifier):
        raise UserError(f"{folder} must hold a classifier, found a {model.head_name} model")
    return model, classify(model, WordPieceTokenizer.from_directory(folder), texts)
