"""The encoder of BERT: embeddings and a stack of post-norm Transformer layers.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019); the layer is that of Vaswani et al. (2017). T = ragged tokens, P = those of them whose
hidden states are asked for, D = hidden size.
"""

from collections.abc import Iterator

from torch import Tensor, nn

from bert_core.backends.dropout import DropoutKey, dropout_mask
from bert_core.backends.layout import AttentionLayout, take_rows
from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig
from bert_core.model.attention import SelfAttention
from bert_core.model.embeddings import Embeddings
from bert_core.model.layers import FeedForward, LayerNorm


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
        layout: AttentionLayout,
        dropout_key: DropoutKey | None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """[T, D] -> [T, D], or [P, D] where only P `rows` are asked for."""
        update = self.attention(hidden, layout, dropout_key, rows)
        if rows is not None:
            hidden = take_rows(hidden, rows)
        hidden = self.attention_norm(
            hidden, update, dropout_mask(update, self.dropout, dropout_key)
        )
        update = self.feed_forward(hidden)
        return self.feed_forward_norm(
            hidden, update, dropout_mask(update, self.dropout, dropout_key)
        )


class Encoder(nn.Module):
    """Read every token in the light of its sequence."""

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

        With `positions` (indices into the T tokens) [P, D] those of P tokens. The last layer then
        lets them read all tokens and computes nothing else for the others: in pretraining five
        of six, in classification all but the first of each sequence.
        """
        layout = AttentionLayout.of(tokens)
        hidden = self.embeddings(layout.sort(tokens), dropout_key)
        *lower_layers, last_layer = self.layers
        for layer in lower_layers:
            hidden = layer(hidden, layout, dropout_key)
        if positions is None:
            return layout.restore(last_layer(hidden, layout, dropout_key))
        rows = layout.rows_at(positions)
        read: Tensor = last_layer(hidden, layout, dropout_key, rows)[: len(positions)]
        return read

    def queries_keys_values(self, tokens: RaggedBatch) -> Iterator[Tensor]:
        """What each layer's attention to one sequence is computed from, [S, 3, H, K]."""
        layout = AttentionLayout.of(tokens)
        hidden = self.embeddings(tokens, None)
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield layer.attention.queries_keys_values(hidden)
            hidden = layer(hidden, layout, None)
