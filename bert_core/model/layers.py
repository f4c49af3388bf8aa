"""The layers: linear maps and norms, embeddings, and self-attention.

Only attention knows where sequences begin and end.

T = ragged tokens, H = heads, K = head width, D = H * K.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.context import hidden_dtype
from bert_core.backends.dropout import (
    DropoutKey,
    DropoutMask,
    Site,
    attention_dropout,
    dropout,
)
from bert_core.backends.operations import Layout, backend_for
from bert_core.config import EncoderConfig
from bert_core.ragged import RaggedBatch


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
        if config.positions == "learned":
            self.position = nn.Parameter(position)
            truncated_normal_(self.position, config.initializer_range)
        else:
            # Fixed, so neither trained nor stored with the weights.
            self.register_buffer("position", sinusoids(*position.shape), persistent=False)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, tokens: RaggedBatch, dropout_key: DropoutKey | None) -> Tensor:
        """[T, D] the embedded tokens; summed in float32 whatever comes after.

        Raises ValueError for a sequence longer than there are positions and, on a CPU, for ids
        outside the tables.
        """
        self._check_ids(tokens)
        backend = backend_for(tokens.input_ids.device)
        embedded = backend.look_up(self.token, tokens.input_ids)
        embedded = embedded + backend.look_up(self.token_type, tokens.token_type_ids)
        if self.config.positions == "sinusoidal":
            embedded = embedded + F.embedding(tokens.position_ids, self.position)
        else:
            embedded = embedded + backend.look_up(self.position, tokens.position_ids)
        normalized = self.layer_norm(embedded).to(hidden_dtype(self.token))
        return dropout(normalized, self.config.hidden_dropout, dropout_key, Site.EMBEDDINGS)

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


def sinusoids(num_positions: int, hidden_size: int) -> Tensor:
    """[num_positions, hidden_size] sines at even and cosines at odd columns.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.5.
    """
    rate = torch.exp(torch.arange(0, hidden_size, 2) * (-math.log(10_000.0) / hidden_size))
    angle = torch.arange(num_positions)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


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
