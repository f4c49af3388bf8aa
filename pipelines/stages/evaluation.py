"""Stage: what a fine-tuned model answers on held-out items, and what simpler models answer.

The answers of the simpler ones, the baselines, are an artifact of their own.
"""

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from bert_core.inference.confidence import CONFIDENCE_FILE
from bert_core.inference.tables import gives_one_probability
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stage import StageContext
from pipelines.stages import EVALUATION
from pipelines.stages.dataset.items import places_in_train
from pipelines.stages.dataset.stage import family_of, figures_of, is_by_column, read_items
from pipelines.stages.figures import BASELINE, Row
from pipelines.store import Artifact, ArtifactStore, Built, Draft
from pipelines.tasks import Answers, Items, Reading
from pipelines.tasks.calibration import (
    calibration_figures,
    calibration_rows,
    confidence_report,
    precision_rows,
)
from pipelines.versions import versions_of

REPORT_FILE: Final = "report.json"
_BASELINES_VERSION = 4
_ANSWERS_FILE = "answers.json"
logger = logging.getLogger(__name__)


def build_evaluation(finetuned: Artifact, dataset: Artifact, context: StageContext) -> Artifact:
    """The report on a fine-tuned model's held-out answers, as the artifact's `report.json`.

    Statistics: the family's figures, and beside them those of its baselines.
    """
    counts = dataset.statistics.get("items_by_label", {}).get("heldout", {})
    missing = [label for label in dataset.statistics["labels"] if counts and not counts.get(label)]
    if missing:
        logger.warning(
            "no held-out item has the label %s: the scores say nothing about it; hold out more "
            "items with dataset.source.heldout_fraction", ", ".join(missing[:5])
        )  # fmt: skip
    if only := dataset.statistics.get("only_held_out"):
        logger.warning("no training item has the tag %s: it counts as missed", ", ".join(only[:5]))
    baselines = build_baselines(dataset, context.store)
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
    report, names = family.report(answers, heldout), [REPORT_FILE]
    confidence: dict[str, float] = {}
    if answers.probable is not None:
        temperature = finetuned.statistics.get("temperature", 1.0)  # older ones have none
        confidence = calibration_figures(answers.probable, temperature)
        is_one = gives_one_probability(model)  # several labels a text have one for each
        table = confidence_report(answers.probable, heldout.labels if is_one else ())
        report |= {"confidence": table}
        if is_one:
            names.append(CONFIDENCE_FILE)
            draft.write(CONFIDENCE_FILE, json.dumps(table).encode())
    draft.write(REPORT_FILE, json.dumps(report, indent=2, ensure_ascii=False).encode())
    statistics = {
        **figures_of(answers, dataset),
        **confidence,
        **baselines.statistics,
        "guess": family.guess,
        "score": dataset.statistics["score"],
        "items": len(answers.values),
        "items_truncated": answers.num_truncated,
    }
    return Built(names, statistics)


def confidence_of(evaluation: Artifact) -> list[Row]:
    """Rows on how sure the model is, for people; none of a model without a probability an item."""
    if CONFIDENCE_FILE not in evaluation.names():
        return []
    table = json.loads(evaluation.local(CONFIDENCE_FILE).read_text(encoding="utf-8"))
    return calibration_rows(evaluation.statistics) + precision_rows(table)


def build_baselines(dataset: Artifact, store: ArtifactStore) -> Artifact:
    """The answers of the family's baselines, learned once for all models of the same items.

    Statistics: `baseline/<name>/<figure>`.
    """

    def build(draft: Draft) -> Built:
        heldout = read_items(dataset, "heldout")
        answers = _learned(heldout, dataset)
        draft.write(_ANSWERS_FILE, json.dumps(answers, ensure_ascii=False).encode())
        return Built([_ANSWERS_FILE], _figures(answers, heldout, dataset))

    return store.get_or_build(
        "baselines",
        version=_BASELINES_VERSION,
        settings={"libraries": versions_of("scikit-learn")},
        inputs={"dataset": dataset},
        build=build,
    )


def answers_in(baselines: Artifact) -> dict[str, list[Any]]:
    """The values of each baseline's answers, by its name."""
    answers: dict[str, list[Any]] = json.loads(baselines.local(_ANSWERS_FILE).read_text("utf-8"))
    return answers


def figures_on(items: Items, finetuned: Artifact, store: ArtifactStore) -> dict[str, float]:
    """The baselines' figures on other items, and how many of these the model was trained on.

    Nothing, if the store lacks the model's own dataset.
    """
    dataset = store.find("dataset", finetuned.manifest.inputs.get("dataset", ""))
    if dataset is None:
        return {}
    trained_on = places_in_train(
        read_items(dataset, "train").rows, items.rows, family_of(dataset),
        by_content=is_by_column(dataset),
    )  # fmt: skip
    figures = _figures(_learned(items, dataset), items, dataset)
    return {**figures, "items_trained_on": len(trained_on)}


def _learned(items: Items, dataset: Artifact) -> dict[str, list[Any]]:
    answers = family_of(dataset).baselines(read_items(dataset, "train"), items)
    return {name: list(values) for name, values in answers.items()}


def _figures(answers: Mapping[str, list[Any]], items: Items, dataset: Artifact) -> dict[str, float]:
    family = family_of(dataset)
    return {
        f"{BASELINE}{name}/{metric.removeprefix('eval/')}": value
        for name, values in answers.items()
        for metric, value in family.figures(Answers(values, 0), items).items()
    }
