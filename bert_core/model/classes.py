"""Models that are fine-tuned, and those of them whose items belong to one of several classes.

N = items, C = classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.batch import LabelledBatch
from bert_core.config import EncoderConfig
from bert_core.model.losses import cross_entropy_sum
from bert_core.model.trainable import Sum, Sums, TrainableModel, classification_sums


class TaskModel(TrainableModel):
    """A model that is fine-tuned on labels."""


class OneOfClasses(TaskModel):
    """A model whose items belong to one of C classes each.

    `label_smoothing` is a matter of training: with it the losses aim at 1 - it + it / C for an
    item's class and it / C for the others (Szegedy et al., 2016, section 7). So are
    `class_weights`: a positive number a class, which its items' losses are multiplied by. Neither
    is saved with the model, and evaluation is without them. Setting them raises ValueError for a
    share outside of [0, 1), and for weights that are not positive.
    """

    _label_smoothing = 0.0
    _class_weights: Tensor | None  # a buffer that is not saved: on the model's device

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.register_buffer("_class_weights", None, persistent=False)

    @property
    def label_smoothing(self) -> float:
        """What the losses give to all classes alike; 0 unless set."""
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
        self._class_weights = (
            None
            if weights is None
            else torch.tensor(weights, dtype=torch.float32, device=self.device)
        )

    def loss_sums(self, batch: LabelledBatch, dropout_key: DropoutKey | None = None) -> Sums:
        logits = self._logits(batch, dropout_key)
        loss = cross_entropy_sum(logits, batch.labels, self.label_smoothing, self._class_weights)
        return {"label": Sum(loss, batch.num_labels)}

    @torch.no_grad()
    def evaluation_sums(self, batch: LabelledBatch) -> Sums:
        logits = self._logits(batch, None)
        return classification_sums("label", logits, batch.labels, batch.num_labels)

    def _logits(self, batch: LabelledBatch, dropout_key: DropoutKey | None) -> Tensor:
        """[N, C] for N items."""
        logits: Tensor = self(batch.tokens, dropout_key)
        return logits
