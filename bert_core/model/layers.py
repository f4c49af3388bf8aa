"""The layers everything is made of: their parameters, and how these begin."""

import torch
from torch import Tensor, nn

from bert_core.backends.dropout import DropoutMask
from bert_core.backends.operations import backend_for


class Linear(nn.Module):
    """Map the last dimension by `weight` [out, in] and add `bias` [out]."""

    def __init__(self, in_features: int, out_features: int, initializer_range: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, initializer_range)

    def forward(self, values: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return backend_for(values.device).linear(values, self.weight, self.bias)


class FeedForward(nn.Module):
    """Widen each token, bend it with the exact GELU, and narrow it again."""

    def __init__(self, hidden_size: int, intermediate_size: int, initializer_range: float) -> None:
        super().__init__()
        self.widen = Linear(hidden_size, intermediate_size, initializer_range)
        self.narrow = Linear(intermediate_size, hidden_size, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        widen, narrow = self.widen, self.narrow
        return backend_for(hidden.device).feed_forward(
            hidden, widen.weight, widen.bias, narrow.weight, narrow.bias
        )


class LayerNorm(nn.Module):
    """Give the last dimension mean 0 and variance 1, then scale and shift it."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def forward(
        self, values: Tensor, update: Tensor | None = None, mask: DropoutMask | None = None
    ) -> Tensor:
        """Normalize `values` + what `mask` leaves of `update`, all [T, D]; float32 statistics."""
        return backend_for(values.device).add_norm(
            values, update, mask, self.weight, self.bias, self.eps
        )


def truncated_normal_(weight: Tensor, std: float) -> None:
    """Fill `weight` from a normal distribution cut off at two deviations, as published."""
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)
