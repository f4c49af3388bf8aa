"""What enters the encoder: token, segment and position embeddings, summed and normalized."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from bert_core.backends.cpu.dropout import DropoutKeys, dropout
from bert_core.backends.cpu.layers import LayerNorm, truncated_normal_
from bert_core.backends.precision import Computing
from bert_core.batch import RaggedBatch
from bert_core.config import EncoderConfig


class Embeddings(Computing):
    """Turn ids into vectors: the sum of what the token, its segment and its position mean."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.token = torch.nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.token_type = torch.nn.Parameter(
            torch.empty(config.type_vocab_size, config.hidden_size)
        )
        truncated_normal_(self.token, config.initializer_range)
        truncated_normal_(self.token_type, config.initializer_range)
        position = torch.empty(config.max_position_embeddings, config.hidden_size)
        if config.positions == "learned":
            self.position = torch.nn.Parameter(position)
            truncated_normal_(self.position, config.initializer_range)
        else:
            # Fixed, so neither trained nor stored with the weights.
            self.register_buffer("position", sinusoids(*position.shape), persistent=False)
        self.layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, tokens: RaggedBatch, keys: DropoutKeys | None) -> Tensor:
        """[T, D] the embedded tokens; summed in float32 whatever comes after."""
        self._refuse_impossible(tokens)
        embedded = self._look_up("token", tokens.input_ids)
        embedded = embedded + self._look_up("token_type", tokens.token_type_ids)
        embedded = embedded + self._look_up("position", tokens.position_ids)
        normalized = self.layer_norm(embedded).to(self.lent("token").values.dtype)
        return dropout(normalized, self.config.hidden_dropout, keys)

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        if name == "position" and self.config.positions == "sinusoidal":
            return F.embedding(ids, self.position)
        looked_up: Tensor = _LookUp.apply(getattr(self, name), ids, self.lent(name).gradient)
        return looked_up

    def _refuse_impossible(self, tokens: RaggedBatch) -> None:
        config = self.config
        if tokens.max_seqlen > config.max_position_embeddings:
            raise ValueError(
                f"a sequence may hold at most {config.max_position_embeddings} tokens, got "
                f"{tokens.max_seqlen}; truncate it or split it into windows"
            )
        if tokens.input_ids.device.type != "cpu":
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


class _LookUp(Function):
    """Adds gradients to the rows that were looked up and touches no other row of a table."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, ids: Tensor, place: Tensor | None) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.place = table.shape, place
        return F.embedding(ids, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        (ids,) = ctx.saved_tensors
        if ctx.place is None:
            return gradient.new_zeros(ctx.shape).index_add_(0, ids, gradient), None, None
        ctx.place.index_add_(0, ids, gradient)
        return None, None, None


def sinusoids(num_positions: int, hidden_size: int) -> Tensor:
    """[num_positions, hidden_size] sines at even and cosines at odd columns.

    Vaswani et al., "Attention Is All You Need" (2017), section 3.5.
    """
    rate = torch.exp(torch.arange(0, hidden_size, 2) * (-math.log(10_000.0) / hidden_size))
    angle = torch.arange(num_positions)[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
