"""The encoder of BERT, embeddings and a stack of post-norm Transformer layers, and the heads on it.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019); the layer is that of Vaswani et al. (2017). Only attention knows where sequences begin and
end. Heads turn hidden states into the logits of a task. A loss is a sum: dividing by the count of a
whole step is the step's business.

T = ragged tokens, P = those of them whose hidden states are asked for, B = sequences, H = heads,
K = head width, D = H * K, M = predicted tokens, V = vocabulary, C = classes.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.context import hidden_dtype
from bert_core.backends.dropout import (
    DropoutKey,
    DropoutMask,
    Site,
    attention_dropout,
    dropout_mask,
    without_dropped,
)
from bert_core.backends.operations import Layout, backend_for
from bert_core.batch import IGNORED_LABEL, RaggedBatch
from bert_core.config import EncoderConfig


class Linear(nn.Module):
    """Map the last dimension by `weight` [out, in] and add `bias` [out]."""

    def __init__(self, in_features: int, out_features: int, initializer_range: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, initializer_range)

    def forward(self, values: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return backend_for(values.device).linear(values, self.weight, self.bias)


class FeedForward(nn.Module):
    """Two linear maps with the exact GELU between them."""

    def __init__(self, hidden_size: int, intermediate_size: int, initializer_range: float) -> None:
        super().__init__()
        self.widen = Linear(hidden_size, intermediate_size, initializer_range)
        self.narrow = Linear(intermediate_size, hidden_size, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        widen, narrow = self.widen, self.narrow
        return backend_for(hidden.device).feed_forward(
            hidden, widen.weight, widen.bias, narrow.weight, narrow.bias
        )


class LayerNorm(nn.Module):
    """Give the last dimension mean 0 and variance 1, then scale and shift it."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self, values: Tensor, update: Tensor | None = None, mask: DropoutMask | None = None
    ) -> Tensor:
        """Normalize `values` + what `mask` leaves of `update`, all [T, D]; float32 statistics."""
        return backend_for(values.device).add_norm(
            values, update, mask, self.weight, self.bias, self.eps
        )


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Fill `weight` from a normal distribution cut off at two deviations, as published."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


class Embeddings(nn.Module):
    """The sum of the embeddings of a token, its segment and its position, normalized."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.token_type = nn.Parameter(torch.empty(config.type_vocab_size, config.hidden_size))
        truncated_normal_(self.token, config.initializer_range)
        truncated_normal_(self.token_type, config.initializer_range)
        position = torch.empty(config.max_position_embeddings, config.hidden_size)
        self.position = nn.Parameter(position)
        truncated_normal_(self.position, config.initializer_range)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None) -> Tensor:
        """[T, D] the embedded tokens; raises ValueError for what the tables do not hold."""
        self._check_ids(tokens)
        backend = backend_for(tokens.input_ids.device)
        embedded = backend.look_up(self.token, tokens.input_ids)
        embedded = embedded + backend.look_up(self.token_type, tokens.token_type_ids)
        embedded = embedded + backend.look_up(self.position, tokens.position_ids)
        normalized = self.layer_norm(embedded).to(hidden_dtype(self.token))
        mask = dropout_mask(normalized, self.config.hidden_dropout, dropout_key, Site.EMBEDDINGS)
        return without_dropped(normalized, mask)

    def _check_ids(self, tokens: RaggedBatch) -> None:
        config = self.config
        if tokens.max_seqlen > config.max_position_embeddings:
            raise ValueError(
                f"a sequence may hold at most {config.max_position_embeddings} tokens, got "
                f"{tokens.max_seqlen}; truncate it or split it into windows"
            )
        if tokens.input_ids.device.type != "cpu" or torch.compiler.is_compiling():
            return  # reading from a GPU would wait for it; its own index check stops the program
        for name, ids, size in (
            ("input_ids", tokens.input_ids, config.vocab_size),
            ("token_type_ids", tokens.token_type_ids, config.type_vocab_size),
        ):
            low, high = (int(bound) for bound in ids.aminmax())
            if low < 0 or high >= size:
                raise ValueError(
                    f"{name} must lie in [0, {size}), got {low if low < 0 else high}; "
                    "were the ids made with this model's vocabulary?"
                )


class SelfAttention(torch.nn.Module):
    """Let each token read the tokens of its own sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.to_qkv = Linear(config.hidden_size, 3 * config.hidden_size, config.initializer_range)
        self.to_out = Linear(config.hidden_size, config.hidden_size, config.initializer_range)

    def forward(
        self,
        hidden: Tensor,
        layout: Layout,
        dropout_key: DropoutKey | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[T, D] -> [T, D], tokens in the order of the layout; or [P, D] for P `rows` of them."""
        backend = backend_for(hidden.device)
        mixed = backend.attend(
            self.queries_keys_values(hidden),
            layout,
            self.config.causal,
            attention_dropout(dropout_key, self.config.attention_dropout),
        )
        return self.to_out(mixed if rows is None else backend.take_rows(mixed, rows))

    def queries_keys_values(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, 3, H, K]."""
        return self.to_qkv(hidden).unflatten(-1, (3, self.config.num_attention_heads, -1))


def attention_probabilities(qkv: Tensor, *, causal: bool) -> Tensor:
    """[S, 3, H, K] of one sequence -> [H, S, S] how much each token reads of each."""
    query, key, _ = qkv.permute(1, 2, 0, 3).unbind(0)  # [H, S, K]
    scores = query @ key.transpose(1, 2) * qkv.shape[-1] ** -0.5
    if causal:
        future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1)


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

    def forward(
        self,
        tokens: RaggedBatch,
        dropout_key: DropoutKey | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """[T, D] the final hidden states; dropout happens where a `dropout_key` is given.

        With `positions`, P indices into the T tokens, only those: [P, D]. The last layer then
        computes nothing beyond attention for the others.
        """
        layout = backend_for(tokens.input_ids.device).lay_out(tokens)
        hidden = self.embeddings(layout.sort(tokens), dropout_key)
        rows = None if positions is None else layout.rows_at(positions)
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            key = None if dropout_key is None else dropout_key.at_layer(index)
            hidden = layer(hidden, layout, key, rows if index == last else None)
        return layout.restore(hidden) if positions is None else hidden[: positions.numel()]

    def queries_keys_values(self, tokens: RaggedBatch) -> Iterator[Tensor]:
        """What each layer's attention to one sequence is computed from, [S, 3, H, K]."""
        layout = backend_for(tokens.input_ids.device).lay_out(tokens)
        hidden = self.embeddings(tokens, None)
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer.attention.queries_keys_values(hidden)
            hidden = layer(hidden, layout, None)


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
    prediction and span prediction have none.
    """

    def __init__(
        self, config: EncoderConfig, num_outputs: int, *, dropout: float | None = None
    ) -> None:
        super().__init__()
        rates = (dropout, config.classifier_dropout, config.hidden_dropout)
        self.dropout = next(rate for rate in rates if rate is not None)
        self.dense = Linear(config.hidden_size, num_outputs, config.initializer_range)

    def forward(self, hidden: Tensor, dropout_key: DropoutKey | None) -> Tensor:
        """[..., D] -> [..., num_outputs]."""
        mask = dropout_mask(hidden, self.dropout, dropout_key, Site.HEAD)
        return self.dense(without_dropped(hidden, mask))


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)[label], summed in float32 over the labels that are not ignored."""
    return F.cross_entropy(logits.float(), labels, ignore_index=IGNORED_LABEL, reduction="sum")


def num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many rows of `logits` are largest at their label; ignored labels never count."""
    return (logits.argmax(dim=-1) == labels).sum()


def squared_error_sum(predictions: Tensor, labels: Tensor) -> Tensor:
    """(prediction - label)^2 summed in float32."""
    return (predictions.float() - labels).square().sum()
