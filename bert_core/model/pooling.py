"""Sequences as one vector each. T = ragged tokens, B = sequences, D = hidden size."""

import torch
from torch import Tensor

from bert_core.backends.dropout import DropoutKey
from bert_core.model.encoder import Pooler
from bert_core.model.trainable import Model
from bert_core.ragged import RaggedBatch


def mean_of_tokens(hidden: Tensor, tokens: RaggedBatch) -> Tensor:
    """[T, D] -> [B, D] the mean of each sequence's tokens, [CLS] and [SEP] among them.

    It is summed in float32 and has the type of `hidden`.
    """
    return tokens.reduced(hidden.float(), "mean").to(hidden.dtype)


def pooled(
    model: Model, tokens: RaggedBatch, pooling: str, dropout_key: DropoutKey | None = None
) -> Tensor:
    """[B, D] of the hidden states of `model`, as `EmbeddingConfig` says of `pooling`.

    The mean counts [CLS] and [SEP]. Raises ValueError for a pooler that `model` has not.
    """
    if pooling in ("cls", "pooled"):
        first = model.encoder(tokens, dropout_key, tokens.first_positions)
        return first if pooling == "cls" else pooler_of(model)(first)
    return pooled_tokens(model.encoder(tokens, dropout_key), tokens, pooling)


def pooled_tokens(hidden: Tensor, tokens: RaggedBatch, pooling: str) -> Tensor:
    """[T, D] -> [B, D] float32: `mean`, `max` or `mean_sqrt_len` of each sequence's tokens."""
    if pooling == "mean_sqrt_len":
        lengths = tokens.reduced(torch.ones_like(hidden[:, :1]).float(), "sum")
        return tokens.reduced(hidden.float(), "sum") / lengths.sqrt()
    return tokens.reduced(hidden.float(), "max" if pooling == "max" else "mean")


def pooler_of(model: Model) -> Pooler:
    """The pooler of `model`; raises ValueError if it has none."""
    pooler: Pooler | None = getattr(model, "pooler", None)
    if pooler is None:
        raise ValueError(
            f"pooled embeddings need a model with a pooler, and {model.head_name} has none; "
            "take mean or cls"
        )
    return pooler
