"""Models that are fine-tuned, and those of them whose items belong to one of several classes.

N = items, C = classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch
from bert_core.config import EncoderConfig
from bert_core.model.encoder import cross_entropy_sum, num_correct
from bert_core.model.trainable import Sum, Sums, TrainableModel


class TaskModel(TrainableModel):
    """A model that is fine-tuned: what it answers to a batch, and one loss of that."""

    def answers(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Tensor:
        """What is compared with the labels: logits, numbers or vectors.

        Raises ValueError as `loss_sums` does.
        """
        answers: Tensor = self(batch.tokens, dropout_key)
        return answers

    def loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        """The loss, summed over the labels; raises ValueError as `loss_sums` does."""
        return cross_entropy_sum(answers, labels)

    def training_loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        """The loss of training, if it differs from that of evaluation."""
        return self.loss_sum(answers, labels)

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        """How many answers are correct, by the name of the figure."""
        return {}

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        loss = self.training_loss_sum(self.answers(batch, dropout_key), batch.labels)
        return {"label": Sum(loss, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        answers = self.answers(batch)
        loss = Sum(self.loss_sum(answers, batch.labels), batch.num_labels)
        return {"label_loss": loss, **self.right_sums(answers, batch)}


def class_names(model: Any) -> tuple[str, ...]:
    """The names of a classifier's classes; their numbers if it was built without names."""
    return model.labels or tuple(str(index) for index in range(model.num_labels))


class OneOfClasses(TaskModel):
    """A model whose items belong to one of C classes each.

    Training alone uses `label_smoothing` e, with which the target of an item's class is
    1 - e + e / C and that of the others e / C (Szegedy et al., 2016, section 7), and
    `class_weights`, by which the losses of each class are multiplied. Neither is saved. Setting
    them raises ValueError for a share outside [0, 1) and for weights that are not positive.
    """

    _label_smoothing = 0.0
    _class_weights: Tensor | None  # a buffer that is not saved: on the model's device

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.register_buffer("_class_weights", None, persistent=False)

    @property
    def label_smoothing(self) -> float:
        """The share of the target that all classes get equally; 0 unless set."""
        return self._label_smoothing

    @label_smoothing.setter
    def label_smoothing(self, share: float) -> None:
        if not 0.0 <= share < 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1), got {share}")
        self._label_smoothing = share

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """What the loss of each class is multiplied by; None unless set."""
        return None if self._class_weights is None else tuple(self._class_weights.tolist())

    @class_weights.setter
    def class_weights(self, weights: Sequence[float] | None) -> None:
        if weights is not None and not all(0.0 < weight < float("inf") for weight in weights):
            raise ValueError(f"class_weights must be positive numbers, got {list(weights)}")
        self._class_weights = None
        if weights is not None:
            self._class_weights = torch.tensor(weights, dtype=torch.float32, device=self.device)

    def training_loss_sum(self, answers: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy_sum(answers, labels, self.label_smoothing, self._class_weights)

    def right_sums(self, answers: Tensor, batch: LabelledBatch) -> Sums:
        right = num_correct(answers, batch.labels).float()
        return {"label_accuracy": Sum(right, batch.num_labels)}
