"""What a recipe says of a fine-tuning, held against its task before a run begins."""

from bert_core.model.classes import OneOfClasses
from bert_core.model.task_models import TextLabeller
from pipelines.core.errors import UserError
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import TaskFamily

NO_WINDOWS = (
    "finetuning.long_texts=windows is for texts with one or several classes, found a {} model, "
    "which reads what is too long in its own way (docs/tasks.md); leave it out"
)


def check_settings(
    settings: FinetuningSettings, family: TaskFamily | None, pretraining: object = None
) -> None:
    """Raise UserError for what is of other tasks: windows, label smoothing, class weights."""
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
