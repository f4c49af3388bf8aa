"""The operations in ordinary torch: no layout, nothing read on the host, gradients by autograd.

The hand-written backend is tested against it; a GPU runs it, and a compiler traces it for ragged
batches of any size. What each function takes and gives is in `operations.Backend`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_core.backends.dropout import (
    AttentionDropout,
    DropoutMask,
    draws_by_torch,
    without_dropped,
)
from bert_core.batch import IGNORED_LABEL, RaggedBatch

takes_compute_weights = False


@dataclass(frozen=True, slots=True, eq=False)
class RaggedLayout:
    """Tokens as they come."""

    tokens: RaggedBatch

    def sort(self, tokens: RaggedBatch) -> RaggedBatch:
        return tokens

    def restore(self, hidden: Tensor) -> Tensor:
        return hidden

    def rows_at(self, positions: Tensor) -> Tensor:
        return positions


def lay_out(tokens: RaggedBatch) -> RaggedLayout:
    return RaggedLayout(tokens)


def linear(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(values, weight.to(values.dtype), bias.to(values.dtype))


def feed_forward(
    hidden: Tensor, widen_weight: Tensor, widen_bias: Tensor,
    narrow_weight: Tensor, narrow_bias: Tensor,
) -> Tensor:  # fmt: skip
    return linear(F.gelu(linear(hidden, widen_weight, widen_bias)), narrow_weight, narrow_bias)


def add_norm(
    values: Tensor, update: Tensor | None, mask: DropoutMask | None,
    weight: Tensor, bias: Tensor, eps: float,
) -> Tensor:  # fmt: skip
    precise = torch.promote_types(values.dtype, torch.float32)
    total = values.to(precise)
    if update is not None:
        total = total + without_dropped(update.to(precise), mask)
    return F.layer_norm(total, [total.shape[-1]], weight, bias, eps).to(values.dtype)


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, table)


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    return values.index_select(0, index)


def attend(
    qkv: Tensor, layout: RaggedLayout, causal: bool, dropped: AttentionDropout | None
) -> Tensor:
    """Vaswani et al. (2017), section 3.2, over sequences padded to the longest.

    A GPU, and a compiler, use torch's fused kernel.
    """
    tokens = layout.tokens

    def attend_rows(rows: Tensor, is_token: Tensor) -> Tensor:
        """[B, S, 3, H, K] and [B, S] -> [B, S, D], S tokens of the longest sequence."""
        query, key, value = rows.permute(2, 0, 3, 1, 4)  # [B, H, S, K]
        is_read = is_token[:, None, None]
        if causal:
            place = torch.arange(rows.shape[1], device=rows.device)
            is_read = is_read & (place <= place[:, None])
        if draws_by_torch(rows):
            rate = 0.0 if dropped is None else dropped.rate
            mixed = F.scaled_dot_product_attention(query, key, value, is_read, rate)
        else:
            scores = query @ key.transpose(-1, -2) * rows.shape[-1] ** -0.5
            probabilities = scores.masked_fill(~is_read, -torch.inf).softmax(dim=-1)
            if dropped is None:
                mixed = probabilities @ value
            else:
                kept = dropped.kept(tokens.lengths, rows.shape[3], rows.dtype)
                mixed = (probabilities * kept) @ value * dropped.factor
        return mixed.transpose(1, 2).flatten(2)

    return tokens.in_rows(attend_rows, qkv)


def fill_rows(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return hidden, labels


def vocabulary_loss_sum(hidden: Tensor, embeddings: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    logits = linear(hidden, embeddings, bias)
    # The softmax and its gradient are float32 whatever the logits' format.
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    targets = labels.masked_fill(labels < 0, IGNORED_LABEL)
    return F.cross_entropy(precise, targets, reduction="sum", ignore_index=IGNORED_LABEL)
