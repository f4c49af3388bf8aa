"""Self-attention over ragged rows: the only place that knows where sequences begin and end.

T = ragged tokens, H = heads, K = head width, D = H * K.
"""

import torch
from torch import Tensor

from bert_core.backends.cpu.grouped_attention import attend_grouped
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.layout import AttentionLayout, take_rows
from bert_core.config import EncoderConfig
from bert_core.model.layers import Linear


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
        layout: AttentionLayout,
        dropout_key: DropoutKey | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[T, D] -> [T, D], tokens in the order of the layout; or [P, D] for P `rows` of them."""
        mixed = attend(
            self.queries_keys_values(hidden),
            layout,
            causal=self.config.causal,
            dropout_rate=self.config.attention_dropout,
            dropout_key=dropout_key,
        )
        return self.to_out(mixed if rows is None else take_rows(mixed, rows))

    def queries_keys_values(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, 3, H, K]."""
        return self.to_qkv(hidden).unflatten(-1, (3, self.config.num_attention_heads, -1))


def attend(
    qkv: Tensor,
    layout: AttentionLayout,
    *,
    causal: bool,
    dropout_rate: float = 0.0,
    dropout_key: DropoutKey | None = None,
) -> Tensor:
    """softmax(Q K^T / sqrt(K)) V in each sequence: [T, 3, H, K] -> [T, D].

    Vaswani et al. (2017), section 3.2. On a GPU the variable-length flash kernel computes it in
    half precision; it knows no dropout of probabilities, so a GPU takes the grouped path too where
    there is one.
    """
    drops = dropout_key is not None and dropout_rate > 0.0
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16) and not drops:
        return _attend_varlen(qkv, layout, causal)
    return attend_grouped(qkv, layout, causal, dropout_rate if drops else 0.0, dropout_key)


def _attend_varlen(qkv: Tensor, layout: AttentionLayout, causal: bool) -> Tensor:
    query, key, value = qkv.unbind(1)
    # Imported here: it brings torch's compiler along, a second that a CPU need not spend.
    from torch.nn.attention.varlen import varlen_attn

    mixed = varlen_attn(
        query, key, value, layout.cu_seqlens, layout.cu_seqlens,
        layout.max_seqlen, layout.max_seqlen, window_size=(-1, 0) if causal else (-1, -1),
    )  # fmt: skip
    assert isinstance(mixed, Tensor)
    return mixed.flatten(1)


def attention_probabilities(qkv: Tensor, *, causal: bool) -> Tensor:
    """[S, 3, H, K] of one sequence -> [H, S, S] how much each token reads of each."""
    query, key, _ = qkv.permute(1, 2, 0, 3).unbind(0)  # [H, S, K]
    scores = query @ key.transpose(1, 2) * qkv.shape[-1] ** -0.5
    if causal:
        future = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return scores.softmax(dim=-1)
