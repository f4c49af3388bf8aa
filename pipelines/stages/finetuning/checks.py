"""What a recipe says of a fine-tuning, held against its task before a run begins."""

from bert_core.model.classes import OneOfClasses
from pipelines.core.errors import UserError
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import TaskFamily


def check_settings(
    settings: FinetuningSettings, family: TaskFamily | None, pretraining: object = None
) -> None:
    """Raise UserError for label smoothing or class weights of a task without such classes."""
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
