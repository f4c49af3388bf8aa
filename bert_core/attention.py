"""Self-attention over ragged rows: the only place that knows where sequences begin and end.

T = ragged tokens, H = heads, K = head width, D = H * K; inside a group of sequences that are
computed together: N sequences, S = tokens of the longest.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.dropout import DropoutKeys, dropout
from bert_core.layers import Linear

# Sequences share a group while padding adds at most this share to the shorter of them.
_MAX_PADDING = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sequences of about one length, computed together."""

    token_index: Tensor  # [N, S] int64 where in the T tokens each token stands; 0 for padding
    is_token: Tensor | None  # [N, S] bool; None where nothing is padded


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayout:
    """How a batch's tokens are laid out for attention; made once, used by every layer."""

    cu_seqlens: Tensor  # [B + 1] int32
    max_seqlen: int
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, tokens: RaggedBatch) -> Self:
        """Sort the sequences into groups of about equal length."""
        device = tokens.input_ids.device
        return cls(
            cu_seqlens=tokens.cu_seqlens,
            max_seqlen=tokens.max_seqlen,
            groups=tuple(_group(*members, device) for members in _similar(tokens.lengths)),
        )


def _similar(lengths: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """First tokens and lengths of the sequences of each group, longest group first."""
    sizes = np.asarray(lengths, dtype=np.int64)
    begins = np.cumsum(sizes) - sizes
    order = np.argsort(-sizes, kind="stable")
    while order.size:
        least = sizes[order[0]] / (1 + _MAX_PADDING)
        count = int(np.searchsorted(-sizes[order], -least, side="right"))
        yield begins[order[:count]], sizes[order[:count]]
        order = order[count:]


def _group(begins: np.ndarray, sizes: np.ndarray, device: torch.device) -> Group:
    column = np.arange(sizes[0])
    is_token = column < sizes[:, None]
    index = np.where(is_token, begins[:, None] + column, 0)
    return Group(
        token_index=torch.from_numpy(index).to(device, non_blocking=True),
        is_token=None
        if sizes[-1] == sizes[0]
        else torch.from_numpy(is_token).to(device, non_blocking=True),
    )


class SelfAttention(torch.nn.Module):
    """Let each token read the tokens of its own sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.to_qkv = Linear(config.hidden_size, 3 * config.hidden_size, config.initializer_range)
        self.to_out = Linear(config.hidden_size, config.hidden_size, config.initializer_range)

    def forward(self, hidden: Tensor, layout: AttentionLayout, keys: DropoutKeys | None) -> Tensor:
        """[T, D] -> [T, D]."""
        mixed = attend(
            self.queries_keys_values(hidden),
            layout,
            causal=self.config.causal,
            dropout_rate=self.config.attention_dropout,
            keys=keys,
        )
        return self.to_out(mixed)

    def queries_keys_values(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, 3, H, K]."""
        return self.to_qkv(hidden).unflatten(-1, (3, self.config.num_attention_heads, -1))


def attend(
    qkv: Tensor,
    layout: AttentionLayout,
    *,
    causal: bool,
    dropout_rate: float = 0.0,
    keys: DropoutKeys | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V in each sequence: [T, 3, H, K] -> [T, D].

    Vaswani et al. (2017), section 3.2. On a GPU the variable-length flash kernel computes it in
    half precision; it knows no dropout of probabilities, so a GPU takes the grouped path too where
    there is one.
    """
    drops = keys is not None and dropout_rate > 0.0
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and not drops:
        return _attend_varlen(qkv, layout, causal)
    return _attend_grouped(qkv, layout, causal, dropout_rate, keys)


def _attend_varlen(qkv: Tensor, layout: AttentionLayout, causal: bool) -> Tensor:
    query, key, value = qkv.unbind(1)
    mixed = varlen_attn(
        query, key, value, layout.cu_seqlens, layout.cu_seqlens,
        layout.max_seqlen, layout.max_seqlen, window_size=(-1, 0) if causal else (-1, -1),
    )  # fmt: skip
    assert isinstance(mixed, Tensor)
    return mixed.flatten(1)


def _attend_grouped(
    qkv: Tensor,
    layout: AttentionLayout,
    causal: bool,
    dropout_rate: float,
    keys: DropoutKeys | None,
) -> Tensor:
    mixed = torch.empty_like(qkv[:, 0])  # [T, H, K]
    for group in layout.groups:
        probabilities, value = group_probabilities(qkv, group, causal)
        probabilities = dropout(probabilities, dropout_rate, keys)
        rows = (probabilities @ value).transpose(1, 2)  # [N, S, H, K]
        if group.is_token is None:
            index, rows = group.token_index.flatten(), rows.flatten(0, 1)
        else:
            index, rows = group.token_index[group.is_token], rows[group.is_token]
        mixed = mixed.index_copy(0, index, rows)
    return mixed.flatten(1)


def group_probabilities(qkv: Tensor, group: Group, causal: bool) -> tuple[Tensor, Tensor]:
    """[N, H, S, S] what each token of each sequence reads, and the values [N, H, S, K]."""
    query, key, value = qkv[group.token_index].permute(2, 0, 3, 1, 4).unbind(0)  # [N, H, S, K]
    scores = (query @ key.transpose(2, 3)) * (1 / math.sqrt(qkv.shape[-1]))
    if group.is_token is not None:
        scores = scores.masked_fill(~group.is_token[:, None, None, :], -torch.inf)
    if causal:
        size = scores.shape[-1]
        future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1), value


def attention_probabilities(qkv: Tensor, *, causal: bool) -> Tensor:
    """[S, 3, H, K] of one sequence -> [H, S, S] how much each token reads of each."""
    every = Group(token_index=torch.arange(qkv.shape[0], device=qkv.device)[None], is_token=None)
    probabilities, _ = group_probabilities(qkv, every, causal)
    return probabilities[0]
