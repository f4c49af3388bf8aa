"""Heads, which turn hidden states into the logits of a task, and the losses of logits.

A loss is a sum: dividing by the count of a whole step is the step's business.

T = ragged tokens, B = sequences, M = predicted tokens, D = hidden size, V = vocabulary,
C = classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.dropout import DropoutKey, Site, dropout
from bert_core.backends.operations import backend_for
from bert_core.batch import IGNORED_LABEL
from bert_core.config import EncoderConfig
from bert_core.model.layers import Embeddings, LayerNorm, Linear


class Pooler(nn.Module):
    """One vector for a whole sequence: a tanh layer over its first token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size, config.initializer_range)

    def forward(self, first: Tensor) -> Tensor:
        """[B, D] -> [B, D]."""
        return torch.tanh(self.dense(first))


class VocabularyHead(nn.Module):
    """Logits over the vocabulary: a transform, then the token embeddings as the last layer.

    The embedding matrix is the encoder's, given with every call: the two are tied.
    """

    table_copy: Tensor | None = None  # in a step: that matrix in the step's number format

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size, config.initializer_range)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, embeddings: Embeddings) -> Tensor:
        """[M, D] -> [M, V] logits."""
        weight = self._table(embeddings).to(hidden.dtype)
        return F.linear(self._transformed(hidden), weight, self.bias.to(hidden.dtype))

    def loss_sum(self, hidden: Tensor, embeddings: Embeddings, labels: Tensor) -> Tensor:
        """Cross-entropy of [M, D] summed over [M] labels; negative ones do not count."""
        backend = backend_for(hidden.device)
        hidden, labels = backend.fill_rows(hidden, labels)
        transformed, table = self._transformed(hidden), self._table(embeddings)
        return backend.vocabulary_loss_sum(transformed, table, self.bias, labels)

    def _table(self, embeddings: Embeddings) -> Tensor:
        return embeddings.token if self.table_copy is None else self.table_copy

    def _transformed(self, hidden: Tensor) -> Tensor:
        return self.layer_norm(F.gelu(self.transform(hidden)))


class TaskHead(nn.Module):
    """Dropout and one linear layer, over whatever a task reads.

    The rate is what the config says of classifiers unless given: as published, next sentence
    prediction and span prediction have none. Raises ValueError for less than one output.
    """

    def __init__(
        self, config: EncoderConfig, num_outputs: int, *, dropout: float | None = None
    ) -> None:
        super().__init__()
        if num_outputs < 1:
            raise ValueError(f"a head needs at least one output, got {num_outputs}")
        of_classifiers = config.classifier_dropout
        if of_classifiers is None:
            of_classifiers = config.hidden_dropout
        self.dropout = of_classifiers if dropout is None else dropout
        self.dense = Linear(config.hidden_size, num_outputs, config.initializer_range)

    def forward(self, hidden: Tensor, dropout_key: DropoutKey | None) -> Tensor:
        """[..., D] -> [..., num_outputs]."""
        return self.dense(dropout(hidden, self.dropout, dropout_key, Site.HEAD))


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
