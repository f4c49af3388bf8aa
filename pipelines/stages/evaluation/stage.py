"""Stage: what a classifier answers on held-out texts, label by label."""

import json
from functools import partial

from bert_core.model.catalogue import TrainableModel
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.core.stage import StageContext
from pipelines.stages.evaluation import EVALUATION
from pipelines.tasks import family_of

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
    folder, family = classifier.local_folder(), family_of(labelled)
    model = load_model(folder)
    assert isinstance(model, TrainableModel), "a fine-tuning leaves a model that can be trained"
    tokenizer = WordPieceTokenizer.from_directory(folder)
    answers = family.answers(model, tokenizer, labelled)
    with draft.file(REPORT_FILE) as target:
        report = family.report(answers, labelled)
        target.path.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    statistics = {
        **family.figures(answers, labelled),
        "texts": len(answers.values),
        "texts_truncated": answers.num_truncated,
    }
    return Built([REPORT_FILE], statistics)
