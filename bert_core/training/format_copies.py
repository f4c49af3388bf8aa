"""Matrices in the number format of a step, for the backend that computes with parameters.

The arena copies all matrices once a step. In a block the model finds these copies where its
parameters were, whether its layers are compiled or not, so that nothing is cast at each
micro-batch; and a copy's gradient is added where its parameter's belongs, in float32, uncast.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bert_core.backends.context import ComputeWeight, add_gradient
from bert_core.model.layers import Linear


class FormatCopies:
    """The copies in `weights` of what linear layers and the vocabulary's head multiply by.

    They are read by every thread in the block. What is frozen has none, and is cast at each use.
    """

    def __init__(self, model: nn.Module, weights: Mapping[Tensor, ComputeWeight]) -> None:
        self._placed = [
            (module, name, _copy_of(parameter, weights[parameter]))
            for module, name, parameter in _multiplied(model)
            if parameter in weights
        ]

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A block in which the model multiplies by the copies."""
        for module, name, copy in self._placed:
            module.__dict__[name] = copy  # before the parameter, which stays where it is
        try:
            yield
        finally:
            for module, name, _ in self._placed:
                del module.__dict__[name]


def _multiplied(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    modules: Iterator[Any] = model.modules()
    for module in modules:
        if isinstance(module, Linear):
            yield module, "weight", module.weight
        head = getattr(module, "vocabulary_head", None)
        if head is not None:  # the table itself is looked up in float32
            yield head, "table_copy", module.encoder.embeddings.token


@torch.enable_grad()
def _copy_of(parameter: Tensor, weight: ComputeWeight) -> Tensor:
    copy: Tensor = _Copy.apply(parameter, weight)
    return copy


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, weight: ComputeWeight) -> Tensor:
        ctx.weight = weight
        return weight.values.detach()  # the same memory

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        return add_gradient(ctx.weight, gradient), None
