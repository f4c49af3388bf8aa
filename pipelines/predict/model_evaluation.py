"""A registered model's figures on a user's labelled items."""

from collections.abc import Sequence
from typing import Any, Final

from bert_core.inference.pretrained import embed
from bert_core.model.task_models import OneOfClasses, class_names
from bert_core.training.state import load_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.registry.find import find_model, is_folder, reference_to, uri_of
from pipelines.registry.package import ANY, Confidence, open_model
from pipelines.stages.dataset.items import Grouped, joined_groups, read_labelled, resolved
from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile
from pipelines.stages.evaluation import figures_on
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import Items, Reading, family_for, family_of_model
from pipelines.tasks.calibration import answered_alone, calibration_figures
from pipelines.tasks.encoding import text_of
from pipelines.tasks.slices import slices_of
from pipelines.tasks.suspects import suspects
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker
from pipelines.train.existing import find_model_artifact

_MOST_SLICES: Final = 100
SUSPECT_COLUMNS: Final = ("place", "label", "suggestion", "probability", "text", "second_text")


def evaluate_file(
    tracker: Tracker,
    reference: str,
    settings: LabelledFile | LabelledDataset,
    store: ArtifactStore | None = None,
    slice_column: str = "",
    num_suspects: int = 0,
    confidence: Confidence = ANY,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and report of the fine-tuned model that `reference` names, on a file or a split.

    Where `store` has the model's training items, the figures include its baselines. With a
    `slice_column` the report has `slices`: the main score of the items with each value; with
    `num_suspects`, `suspects`: the items whose labels are probably wrong (`SUSPECT_COLUMNS`); with
    a `confidence`, `alone`: how many answers are so sure, and how many of those are right. Raises
    UserError for labels that the model was not trained on, for a file that cannot be read as items
    of its task or whose scores would say nothing, for a reference that names no fine-tuned model,
    and for a model that cannot tell how sure it is.
    """
    address, tags = reference, dict[str, str]()  # of a folder no tags
    if not is_folder(reference):
        version = find_model(tracker.client(), reference)
        address, reference, tags = uri_of(version), reference_to(version), version.tags
    model, tokenizer = open_model(tracker, address, confidence)
    name = family_of_model(model)
    if name is None:
        raise UserError(
            f"{reference} has the head {model.head_name}; name a model fine-tuned for a task"
        )
    task = family_for(model, name)
    if isinstance(settings, LabelledDataset):
        settings = resolved(settings)
    if slice_column:
        settings = settings.model_copy(update={"group_column": slice_column})
    grouped = read_labelled(settings.parts[0], task, settings)
    rows = [each.item for each in grouped]
    items = Items(rows, class_names(model))
    if unknown := task.unknown_classes(items):
        raise UserError(
            f"{reference} was not trained on the labels {', '.join(unknown[:5])} of "
            f"{settings.parts[0]}; it knows {', '.join(items.labels)[:200]}"
        )
    task.check_scored(rows)
    answers = task.answers(model, tokenizer, items, Reading(model.config.max_position_embeddings))
    fingerprint = tags.get(FINGERPRINT_TAG)
    finetuned = store.find("finetuned", fingerprint) if store and fingerprint else None
    probable = answers.probable
    figures = {
        **task.figures(answers, items),
        **({} if probable is None else calibration_figures(probable)),
        **({} if store is None or finetuned is None else figures_on(items, finetuned, store)),
        "items": len(rows),
        "items_truncated": answers.num_truncated,
    }
    report = {**task.report(answers, items), "model": reference, "score": task.score}
    if confidence != ANY:
        assert isinstance(model, OneOfClasses) and probable is not None
        alone = answered_alone(probable, model.min_confidence, items.labels)
        report["alone"] = {**alone, "min_precision": confidence.min_precision}
    if slice_column:
        # An item without a value belongs to itself.
        values = ["" if each.group == task.group(each.item) else each.group for each in grouped]
        if not any(values) or len({*values}) > _MOST_SLICES:
            raise UserError(
                f"{settings.parts[0]} has {len({*values} - {''}):,} different values in "
                f"{slice_column}; name a column with some, and at most {_MOST_SLICES}"
            )
        score = task.scores(answers, items)[task.score]
        report["slices"] = [each._asdict() for each in slices_of(score, values)]
    if num_suspects:
        # Not the groups that were read, which are the values of the slices where there are any.
        groups = joined_groups([Grouped(task.group(item), item) for item in rows])
        places = [each.place for each in grouped]
        report |= _suspects(items, groups, places, finetuned, store, num_suspects)
    return figures, report


def _suspects(
    items: Items,
    groups: Sequence[str],
    places: Sequence[str],
    finetuned: Artifact | None,
    store: ArtifactStore | None,
    count: int,
) -> dict[str, Any]:
    """`suspects`: rows of `SUSPECT_COLUMNS`; `judges`: who was asked.

    The model itself is not asked: it repeats what it was trained on. The encoder that it was
    fine-tuned from is, where the store has it.
    """
    if "label" not in items.rows[0] or not items.labels:
        raise UserError("--suspects is for classification alone; leave it out")
    encoder = vectors = None
    if store is not None and finetuned is not None:
        encoder = find_model_artifact(finetuned.manifest.inputs.get("encoder", ""), store)
    if encoder is not None:
        folder = encoder.local_folder()
        tokenizer = WordPieceTokenizer.from_directory(folder)
        vectors = embed(load_model(folder), tokenizer, list(map(text_of, items.rows))).vectors
    rows = []
    for suspect in suspects(items, groups, vectors, count):
        item = items.rows[suspect.row]
        values = (
            places[suspect.row], suspect.label, suspect.suggestion, suspect.probability,
            item["text"], item["second_text"] or "",
        )  # fmt: skip
        rows.append(dict(zip(SUSPECT_COLUMNS, values, strict=True)))
    judges = ["TF-IDF"] if encoder is None else ["TF-IDF", "the encoder's vectors"]
    return {"suspects": rows, "judges": judges}
