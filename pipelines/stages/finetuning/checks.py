"""What a recipe says of a fine-tuning, held against its task before a run begins."""

from bert_core.inference.tables import question_of_head
from bert_core.model.catalogue import model_class
from bert_core.model.classes import OneOfClasses
from bert_core.model.task_models import TextLabeller, TextModel
from pipelines.core.errors import UserError
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import TaskFamily

NO_WINDOWS = (
    "finetuning.long_texts=windows is for texts with one or several classes, found a {} model, "
    "which reads what is too long in its own way (docs/tasks.md); leave it out"
)
NO_POOLING = (
    "finetuning.pooling=mean is for models of whole texts, found a {} model, whose head reads "
    "something else; leave it out"
)


def check_settings(
    settings: FinetuningSettings, family: TaskFamily | None, pretraining: object = None
) -> None:
    """Raise UserError for what is of other tasks: pooling, windows, smoothing, class weights.

    And for a family whose models could be trained, but neither loaded again nor asked.
    """
    if family is not None:
        _refuse_lost_heads(family)
        if settings.pooling == "mean" and not issubclass(family.models[0], TextModel):
            raise UserError(NO_POOLING.format(family.models[0].head_name))
    if family is not None and settings.long_texts == "windows":
        model = family.models[0]
        if not issubclass(model, TextLabeller):
            raise UserError(NO_WINDOWS.format(model.head_name))
    is_balanced = settings.class_weights == "balanced"
    smoothing = (settings.label_smoothing, *settings.search.label_smoothing)
    if family is None or not (any(smoothing) or is_balanced):
        return
    model = family.models[0]
    if not issubclass(model, OneOfClasses):
        raise UserError(
            "finetuning.label_smoothing and class_weights are of items that belong to one of "
            f"several classes, and those of a {model.head_name} model do not; leave them out"
        )
    if is_balanced and model.head_name == "multiple_choice":
        raise UserError(
            "finetuning.class_weights are of classes with names, and choices have none; leave it "
            "out"
        )


def _refuse_lost_heads(family: TaskFamily) -> None:
    for model in family.models:
        head = model.head_name
        try:
            is_found = model_class(head) is model
            question_of_head(head)
        except (ValueError, AttributeError):
            is_found = False
        if not is_found:
            raise UserError(
                f"a model must be found again by its head, and tables must be able to ask it, but "
                f"the head {head} of {model.__name__} is not there; put it into "
                f"bert_core/tasks/{head}.py as MODEL, with its QUESTION (docs/architecture.md)"
            )
