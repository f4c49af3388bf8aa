"""Preparing a model for fine-tuning: checked before a run, done before the first step."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_core.batch import IGNORED_LABEL
from bert_core.model.catalogue import Model, TrainableModel
from bert_core.model.preparation import freeze, resize_positions
from bert_core.model.task_models import OneOfClasses, SequenceRegressor, TextLabeller, TextModel
from pipelines.errors import UserError
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.tasks import TaskExamples, TaskFamily
from pipelines.tasks.encoding import Sequences

_NO_NAMES = (
    "finetuning.class_weights are for classes with names, and choices have none; leave it out"
)


def check_settings(
    settings: FinetuningSettings, family: TaskFamily | None, pretraining: object = None
) -> None:
    """Raise UserError where the family's models cannot do what the settings ask for."""
    if family is not None:
        _check_model(settings, family.model)


def _check_model(settings: FinetuningSettings, model: type[Model]) -> None:
    head = model.head_name
    if settings.pooling == "mean" and not issubclass(model, TextModel):
        raise UserError(
            "finetuning.pooling=mean is for models of whole texts, and the head of a "
            f"{head} model reads something else; leave it out"
        )
    if settings.long_texts == "windows" and not issubclass(model, TextLabeller):
        raise UserError(
            "finetuning.long_texts=windows is for texts with one or several classes; a "
            f"{head} model reads long texts in its own way (docs/tasks.md); leave it out"
        )
    is_balanced = settings.class_weights == "balanced"
    is_smoothed = any((settings.label_smoothing, *settings.search.label_smoothing))
    if (is_smoothed or is_balanced) and not issubclass(model, OneOfClasses):
        raise UserError(
            "finetuning.label_smoothing and class_weights are for items that belong to one of "
            f"several classes, and those of a {head} model do not; leave them out"
        )
    if is_balanced and head == "multiple_choice":
        raise UserError(_NO_NAMES)


def prepare(model: TrainableModel, settings: FinetuningSettings, train: TaskExamples) -> None:
    """Set how much the model reads, what its head reads, what is frozen, and how losses are scaled.

    Raises UserError as `check_settings` does, and where the model has fewer layers than are to be
    frozen.
    """
    _check_model(settings, type(model))
    if settings.pooling == "mean":
        assert isinstance(model, TextModel)
        model.drop_pooler()
    if settings.max_tokens is not None:  # it reads no position that it was not fine-tuned on
        resize_positions(model, settings.max_tokens)
    num_layers = model.config.num_layers
    if settings.freeze_layers > num_layers:
        raise UserError(
            f"finetuning.freeze_layers={settings.freeze_layers} is more than the {num_layers} "
            "layers of the encoder; lower it"
        )
    if settings.freeze_embeddings or settings.freeze_layers:
        freeze(model, embeddings=settings.freeze_embeddings, layers=settings.freeze_layers)
    if settings.long_texts == "windows":
        assert isinstance(model, TextLabeller)
        model.reads_windows = True
    if isinstance(model, OneOfClasses):
        model.label_smoothing = settings.label_smoothing
        if settings.class_weights == "balanced":
            num_labels = getattr(model, "num_labels", None)
            if num_labels is None:
                raise UserError(_NO_NAMES)
            model.class_weights = balanced_weights(train, num_labels)
    if isinstance(model, SequenceRegressor):
        values = _labels_of(train).astype(np.float64)
        model.mean, model.deviation = float(values.mean()), float(values.std()) or 1.0


def balanced_weights(train: TaskExamples, num_labels: int) -> tuple[float, ...]:
    """For each class the mean number of labels of a class over its own.

    Weighted so, all classes together count alike, and the labels as much as before. A class that
    no label has counts as if it had one.
    """
    labels = _labels_of(train)
    counts = np.bincount(labels[labels != IGNORED_LABEL], minlength=num_labels)
    return tuple((counts.sum() / num_labels / np.maximum(counts, 1)).tolist())


def _labels_of(train: TaskExamples) -> NDArray[Any]:
    """[N], or [T] of tokens."""
    assert isinstance(train, Sequences), type(train)
    return train.labels if isinstance(train.labels, np.ndarray) else np.concatenate(train.labels)
