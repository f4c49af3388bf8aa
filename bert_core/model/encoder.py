"""The encoder of BERT, embeddings and a stack of post-norm Transformer layers, and the heads on it.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019); the layer is that of Vaswani et al. (2017). Heads turn hidden states into the logits of a
task. A loss is a sum: dividing by the count of a whole step is the step's business.

T = ragged tokens, P = those of them whose hidden states are asked for, B = sequences,
M = predicted tokens, D = hidden size, V = vocabulary, C = classes.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert_core.backends.context import current_context, in_context
from bert_core.backends.dropout import DropoutKey, Site, dropout, dropout_mask
from bert_core.backends.operations import Layout, backend_for
from bert_core.batch import IGNORED_LABEL
from bert_core.config import EncoderConfig
from bert_core.model.layers import Embeddings, FeedForward, LayerNorm, Linear, SelfAttention
from bert_core.ragged import RaggedBatch


class EncoderLayer(nn.Module):
    """Attention, then a feed-forward network, each added to what it read and normalized."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(
            config.hidden_size, config.intermediate_size, config.initializer_range
        )
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        dropout_key: DropoutKey | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[T, D] -> [T, D], or [P, D] where only P `rows` are asked for."""
        update = self.attention(hidden, layout, dropout_key, rows)
        if rows is not None:
            hidden = backend_for(hidden.device).take_rows(hidden, rows)
        mask = dropout_mask(update, self.dropout, dropout_key, Site.ATTENTION_OUTPUT)
        hidden = self.attention_norm(hidden, update, mask)
        update = self.feed_forward(hidden)
        mask = dropout_mask(update, self.dropout, dropout_key, Site.FEED_FORWARD_OUTPUT)
        return self.feed_forward_norm(hidden, update, mask)


class Encoder(nn.Module):
    """Embeddings and a stack of layers: each token in the context of its sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        # This many of the lowest layers keep only their input; backward computes them again.
        self.num_checkpointed_layers = 0

    def forward(
        self,
        tokens: RaggedBatch,
        dropout_key: DropoutKey | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """[T, D] the final hidden states; dropout happens where a `dropout_key` is given.

        With `positions`, P indices into the T tokens, only those: [P, D]. The last layer then
        computes nothing beyond attention for the others: in pretraining five of six tokens, in
        classification all but the first of each sequence.
        """
        layout = backend_for(tokens.input_ids.device).lay_out(tokens)
        hidden = self.embeddings(layout.sort(tokens), dropout_key)
        rows = None if positions is None else layout.rows_at(positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            key = None if dropout_key is None else dropout_key.at_layer(index)
            is_checkpointed = index < self.num_checkpointed_layers and torch.is_grad_enabled()
            compute = _computed_again(layer) if is_checkpointed else layer
            hidden = compute(hidden, layout, key, rows if index == last else None)
        return layout.restore(hidden) if positions is None else hidden[: positions.numel()]

    def queries_keys_values(self, tokens: RaggedBatch) -> Iterator[Tensor]:
        """What each layer's attention to one sequence is computed from, [S, 3, H, K]."""
        layout = backend_for(tokens.input_ids.device).lay_out(tokens)
        hidden = self.embeddings(tokens, None)
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer.attention.queries_keys_values(hidden)
            hidden = layer(hidden, layout, None)


def _computed_again(layer: nn.Module) -> Callable[..., Tensor]:
    """`layer`, of which only the input is kept: backward computes it again in this context."""
    settings: dict[str, Any] = {"use_reentrant": False}
    if not torch.compiler.is_compiling():  # a graph holds everything
        context = current_context()
        settings["context_fn"] = lambda: (nullcontext(), in_context(context))
    return partial(checkpoint, layer, **settings)


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

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size, config.initializer_range)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, embeddings: Embeddings) -> Tensor:
        """[M, D] -> [M, V] logits."""
        weight = embeddings.token.to(hidden.dtype)
        return F.linear(self._transformed(hidden), weight, self.bias.to(hidden.dtype))

    def loss_sum(self, hidden: Tensor, embeddings: Embeddings, labels: Tensor) -> Tensor:
        """Cross-entropy of [M, D] summed over [M] labels; negative ones do not count."""
        backend = backend_for(hidden.device)
        hidden, labels = backend.fill_rows(hidden, labels)
        transformed = self._transformed(hidden)
        return backend.vocabulary_loss_sum(transformed, embeddings.token, self.bias, labels)

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
