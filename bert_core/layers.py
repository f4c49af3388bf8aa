"""The two layers everything is made of: a linear map and a layer normalization."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bert_core.precision import LowPrecision


class Linear(LowPrecision):
    """Map the last dimension by `weight` [out, in] and add `bias` [out]."""

    def __init__(self, in_features: int, out_features: int, initializer_range: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.zeros(out_features))
        truncated_normal_(self.weight, initializer_range)

    def forward(self, values: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return F.linear(values, self.computed("weight"), self.computed("bias"))


class LayerNorm(LowPrecision):
    """Give the last dimension mean 0 and variance 1, then scale and shift it."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.bias = torch.nn.Parameter(torch.zeros(hidden_size))

    def forward(self, values: Tensor) -> Tensor:
        """[..., D] -> [..., D]; statistics in float32."""
        weight, bias = self.computed("weight"), self.computed("bias")
        return F.layer_norm(values, weight.shape, weight, bias, self.eps)


def truncated_normal_(weight: Tensor, deviation: float) -> None:
    """Fill `weight` from a normal distribution cut off at two deviations, as published."""
    torch.nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)
