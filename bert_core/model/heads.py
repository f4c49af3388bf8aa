"""Heads: what turns hidden states into the logits of a task.

T = ragged tokens, B = sequences, M = predicted tokens, D = hidden size, V = vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.dropout import DropoutKey, Site, dropout
from bert_core.backends.operations import backend_for
from bert_core.config import EncoderConfig
from bert_core.model.embeddings import Embeddings
from bert_core.model.layers import LayerNorm, Linear


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
