"""Stage: what a fine-tuned model answers on held-out items."""

import json
from functools import partial

from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import Artifact, Built, Draft
from pipelines.stage import StageContext
from pipelines.stages.dataset.stage import family_of, read_items
from pipelines.stages.evaluation import EVALUATION
from pipelines.stages.evaluation.baselines import build_baselines
from pipelines.stages.finetuning.training import figures_of
from pipelines.tasks import Reading

REPORT_FILE = "report.json"


def build_evaluation(finetuned: Artifact, dataset: Artifact, context: StageContext) -> Artifact:
    """The report on a fine-tuned model's held-out answers, as the artifact's `report.json`.

    Statistics: the family's figures, and beside them those of its baselines.
    """
    baselines = build_baselines(finetuned, dataset, context.store)
    return context.store.get_or_build(
        EVALUATION.kind,
        version=EVALUATION.version,
        settings={},
        inputs={"finetuned": finetuned, "dataset": dataset, "baselines": baselines},
        build=partial(_evaluate, finetuned, dataset, baselines),
    )


def _evaluate(finetuned: Artifact, dataset: Artifact, baselines: Artifact, draft: Draft) -> Built:
    folder, family = finetuned.local_folder(), family_of(dataset)
    model, tokenizer = load_model(folder), WordPieceTokenizer.from_directory(folder)
    heldout = read_items(dataset, "heldout")
    reading = Reading(model.config.max_position_embeddings)
    answers = family.answers(model, tokenizer, heldout, reading)
    with draft.file(REPORT_FILE) as target:
        report = family.report(answers, heldout)
        target.path.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    statistics = {
        **figures_of(answers, dataset),
        **baselines.statistics,
        "guess": family.guess,
        "score": dataset.statistics["score"],
        "items": len(answers.values),
        "items_truncated": answers.num_truncated,
    }
    return Built([REPORT_FILE], statistics)
