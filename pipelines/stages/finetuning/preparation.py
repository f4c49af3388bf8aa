"""What a model's head reads, what of it does not learn, and how its classes count."""

import numpy as np

from bert_core.batch import IGNORED_LABEL
from bert_core.model.catalogue import TrainableModel
from bert_core.model.classes import OneOfClasses
from bert_core.model.preparation import freeze
from bert_core.model.task_models import TextLabeller, TextModel
from pipelines.core.errors import UserError
from pipelines.stages.finetuning.checks import NO_POOLING, NO_WINDOWS
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import TaskExamples


def prepare(model: TrainableModel, settings: FinetuningSettings, train: TaskExamples) -> None:
    """Choose what the head reads, freeze what stays as it is, and set what classes count.

    Raises UserError where the model has fewer layers than are to be frozen, no classes, or a head
    that reads something else.
    """
    if settings.pooling == "mean":
        if not isinstance(model, TextModel):
            raise UserError(NO_POOLING.format(model.head_name))
        model.drop_pooler()
    num_layers = model.config.num_layers
    if settings.freeze_layers > num_layers:
        raise UserError(
            f"finetuning.freeze_layers must be at most the {num_layers} layers of the encoder, got "
            f"{settings.freeze_layers}; lower it"
        )
    if settings.freeze_embeddings or settings.freeze_layers:
        freeze(model, embeddings=settings.freeze_embeddings, layers=settings.freeze_layers)
    if settings.long_texts == "windows":
        if not isinstance(model, TextLabeller):
            raise UserError(NO_WINDOWS.format(model.head_name))
        model.reads_windows = True
    is_balanced = settings.class_weights == "balanced"
    if not settings.label_smoothing and not is_balanced:
        return
    if not isinstance(model, OneOfClasses):
        raise UserError(
            "finetuning.label_smoothing and class_weights are of items that belong to one of "
            f"several classes, and those of a {model.head_name} model do not; leave them out"
        )
    model.label_smoothing = settings.label_smoothing
    if not is_balanced:
        return
    num_labels = getattr(model, "num_labels", None)
    if num_labels is None:
        raise UserError(
            f"finetuning.class_weights are of classes with names, and a {model.head_name} model "
            "has none; leave them out"
        )
    model.class_weights = balanced_weights(train, num_labels)


def balanced_weights(train: TaskExamples, num_labels: int) -> tuple[float, ...]:
    """For each class the mean number of labels of a class over its own.

    Weighted so, all classes together count alike, and the labels as much as before. A class that
    no label has counts as if it had one.
    """
    labels = train.batch(np.arange(len(train))).labels.numpy()
    counts = np.bincount(labels[labels != IGNORED_LABEL], minlength=num_labels)
    return tuple((counts.sum() / num_labels / np.maximum(counts, 1)).tolist())
