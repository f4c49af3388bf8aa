"""The encoder of BERT: embeddings and a stack of post-norm Transformer layers.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019); the layer is that of Vaswani et al. (2017). T = ragged tokens, D = hidden size.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.attention import AttentionLayout, SelfAttention
from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.dropout import DropoutKeys, dropout
from bert_core.embeddings import Embeddings
from bert_core.layers import LayerNorm, Linear


class FeedForward(nn.Module):
    """Widen each token, bend it with the exact GELU, and narrow it again."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        deviation = config.initializer_range
        self.widen = Linear(config.hidden_size, config.intermediate_size, deviation)
        self.narrow = Linear(config.intermediate_size, config.hidden_size, deviation)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        return self.narrow(F.gelu(self.widen(hidden)))


class EncoderLayer(nn.Module):
    """Attention, then a feed-forward network, each added to what it read and normalized."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dropout = config.hidden_dropout
        self.attention = SelfAttention(config)
        self.attention_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, hidden: Tensor, layout: AttentionLayout, keys: DropoutKeys | None) -> Tensor:
        """[T, D] -> [T, D]."""
        update = dropout(self.attention(hidden, layout, keys), self.dropout, keys)
        hidden = self.attention_norm(hidden + update)
        update = dropout(self.feed_forward(hidden), self.dropout, keys)
        return self.feed_forward_norm(hidden + update)


class Encoder(nn.Module):
    """Read every token in the light of its sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None = None) -> Tensor:
        """[T, D] the final hidden states; dropout happens where `keys` are given."""
        layout = AttentionLayout.of(tokens)
        hidden = self.embeddings(tokens, keys)
        for layer in self.layers:
            hidden = layer(hidden, layout, keys)
        return hidden

    def queries_keys_values(self, tokens: RaggedBatch) -> Iterator[Tensor]:
        """What each layer's attention is computed from, [T, 3, H, K], layer by layer."""
        layout = AttentionLayout.of(tokens)
        hidden = self.embeddings(tokens, None)
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer.attention.queries_keys_values(hidden)
            hidden = layer(hidden, layout, None)
