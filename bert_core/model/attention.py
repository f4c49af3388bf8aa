"""Self-attention over ragged rows: the only place that knows where sequences begin and end.

T = ragged tokens, H = heads, K = head width, D = H * K.
"""

import torch
from torch import Tensor

from bert_core.backends.attention_dropout import attention_dropout
from bert_core.backends.dropout import DropoutKey
from bert_core.backends.operations import Layout, backend_for
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
