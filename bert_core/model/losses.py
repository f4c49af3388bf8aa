"""Losses as sums: dividing by the count of a whole step is the step's business.

B = texts, C = classes.
"""

import torch.nn.functional as F
from torch import Tensor

from bert_core.batch import IGNORED_LABEL


def cross_entropy_sum(
    logits: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    class_weights: Tensor | None = None,
) -> Tensor:
    """-log softmax(logits)[label], summed in float32 over the labels that are not ignored.

    With `label_smoothing` e a label counts 1 - e, and all C classes alike e / C each. With
    `class_weights` [C] the term of each class is multiplied by its weight.
    """
    return F.cross_entropy(
        logits.float(), labels, weight=class_weights, reduction="sum",
        ignore_index=IGNORED_LABEL, label_smoothing=label_smoothing,
    )  # fmt: skip


def binary_cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """-log of the probability that each of [B, C] decisions is right, summed in float32."""
    return F.binary_cross_entropy_with_logits(logits.float(), labels, reduction="sum")


def num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows of `logits` are largest at their label; ignored labels never count."""
    return (logits.argmax(dim=-1) == labels).sum()


def squared_error_sum(predictions: Tensor, labels: Tensor) -> Tensor:
    """(prediction - label)^2 summed in float32."""
    return (predictions.float() - labels).square().sum()
