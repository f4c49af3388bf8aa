"""What enters the encoder: token, segment and position embeddings, summed and normalized."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bert_core.backends.context import hidden_dtype
from bert_core.backends.dropout import DropoutKey, Site, dropout
from bert_core.backends.operations import backend_for
from bert_core.config import EncoderConfig
from bert_core.model.layers import LayerNorm, truncated_normal_
from bert_core.ragged import RaggedBatch


class Embeddings(nn.Module):
    """Turn ids into vectors: the sum of what the token, its segment and its position mean."""

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
            return  # asking a GPU would wait for it; its own index check stops the program there
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
