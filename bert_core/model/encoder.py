"""The encoder of BERT: embeddings and a stack of post-norm Transformer layers.

Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
(2019); the layer is that of Vaswani et al. (2017). T = ragged tokens, P = those of them whose
hidden states are asked for, D = hidden size.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bert_core.backends.context import current_context, in_context
from bert_core.backends.dropout import DropoutKey, Site, dropout_mask
from bert_core.backends.operations import Layout, backend_for
from bert_core.config import EncoderConfig
from bert_core.model.layers import Embeddings, FeedForward, LayerNorm, SelfAttention
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
    """Read every token in the light of its sequence."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        # So many of the lowest keep nothing for the way back and are computed a second time.
        self.num_checkpointed_layers = 0

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
    """`layer`, keeping what enters it alone: the way back computes it once more, as it did now."""
    # No state of a generator is kept: dropout draws the same masks again by itself.
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if not torch.compiler.is_compiling():  # a graph holds everything
        context = current_context()
        settings["context_fn"] = lambda: (nullcontext(), in_context(context))
    return partial(checkpoint, layer, **settings)
