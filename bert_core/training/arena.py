"""All trainable parameters in one buffer, and their gradients in another.

One buffer makes the optimizer's update, the gradient norm, the exchange between machines and the
copy in a lower precision one call each, whatever the number of layers.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from bert_core.backends.context import ComputeWeight, computing
from bert_core.backends.operations import backend_for
from bert_core.files import listed

_ALIGNMENT = 64  # elements; every parameter starts on a cache line in every number format


class ParameterArena:
    """Moves the trainable parameters of `model` into one buffer, matrices first.

    The parameters become views of `values`, with views of `gradients` as their gradients. Frozen
    ones (`requires_grad=False`) stay where they are and have no gradients. Build it once the model
    is on its device. Matrices, and vectors, are in the order of `order`, which lists all trainable
    names; by default in the model's.

    Raises ValueError if nothing is trainable, or a parameter is not float32 on that device.
    """

    def __init__(self, model: nn.Module, order: Sequence[str] | None = None) -> None:
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not trainable:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        named = [(name, trainable[name]) for name in order or trainable]
        # Biases and normalization are all the parameters with one dimension. They are never copied
        # to a lower precision, so what is copied is one part of the buffer.
        named.sort(key=lambda item: item[1].ndim < 2)
        device = named[0][1].device
        self.parameters = dict(named)  # by name, in the order of the buffer
        # Modules, not parameters: another parameter may be assigned to the name later.
        self._owners = {
            name: model.get_submodule(name.rpartition(".")[0])
            for name, _ in model.named_parameters()
        }
        self._offsets: dict[str, int] = {}
        size = 0
        for name, parameter in named:
            if parameter.dtype != torch.float32 or parameter.device != device:
                raise ValueError(
                    f"every parameter must be float32 on {device}, got {name} as "
                    f"{parameter.dtype} on {parameter.device}"
                )
            self._offsets[name] = size
            size += padded(parameter.numel())
        vectors = (self._offsets[name] for name, p in named if p.ndim < 2)
        self._matrices_end = next(vectors, size)
        self.values = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self._copies: dict[torch.dtype, Tensor] = {}
        self._compute_weights: dict[torch.dtype, dict[Tensor, ComputeWeight]] = {}
        self._adopt()

    @torch.no_grad()
    def _adopt(self) -> None:
        values, gradients = self.views(self.values), self.views(self.gradients)
        for name, parameter in self.parameters.items():
            values[name].copy_(parameter)
            parameter.data = values[name]
            parameter.grad = gradients[name]
        self._addresses = {name: _addresses(p) for name, p in self.parameters.items()}

    def views(self, buffer: Tensor, begin: int = 0) -> dict[str, Tensor]:
        """A buffer of this layout, cut into tensors of the parameters' shapes.

        A buffer that starts at element `begin` of the layout, or ends before the layout does,
        gives the views of the parameters that lie in it.
        """
        views = {}
        for name, parameter in self.parameters.items():
            first = self._offsets[name] - begin
            if first >= 0 and first + parameter.numel() <= buffer.numel():
                views[name] = buffer[first : first + parameter.numel()].view(parameter.shape)
        return views

    def spans(self) -> dict[str, tuple[int, int]]:
        """Where in the buffers each parameter begins and the next one does."""
        return {
            name: (offset, offset + padded(self.parameters[name].numel()))
            for name, offset in self._offsets.items()
        }

    def computing(self, dtype: torch.dtype) -> AbstractContextManager[None]:
        """A block in which the model computes in `dtype` and adds gradients up here."""
        if not backend_for(self.values.device).takes_compute_weights:
            return computing(dtype)  # it casts a matrix where it is used, and autograd adds up
        if dtype not in self._compute_weights:
            self._compute_weights[dtype] = self._new_compute_weights(dtype)
        if dtype in self._copies:
            self._copies[dtype].copy_(self.values[: self._matrices_end])
        return computing(dtype, dict(self._compute_weights[dtype]))

    def _new_compute_weights(self, dtype: torch.dtype) -> dict[Tensor, ComputeWeight]:
        values, gradients = self.views(self.values), self.views(self.gradients)
        if dtype != torch.float32:
            matrices = self.values[: self._matrices_end]
            self._copies[dtype] = torch.empty_like(matrices, dtype=dtype)
            values |= self.views(self._copies[dtype])
        return {
            parameter: ComputeWeight(values[name], gradients[name])
            for name, parameter in self.parameters.items()
        }

    def check_unchanged(self) -> None:
        """Raise ValueError if the model no longer learns from this arena, naming the parameters.

        A parameter was frozen or made trainable since this was built, or it or its gradient was
        moved, as `.to()`, `.double()`, `load_state_dict(assign=True)` and `zero_grad()` do.
        """
        changed = [
            name
            for name, module in self._owners.items()
            if _addresses(getattr(module, name.rpartition(".")[2])) != self._addresses.get(name)
        ]
        if changed:
            raise ValueError(
                "an optimizer must find the parameters and gradients of its model where it put "
                f"them, and frozen what was frozen, found others at {listed(changed)}; freeze, "
                "move, convert or load the model first, then build its optimizer, and do not call "
                "zero_grad: a step does that"
            )


def _addresses(parameter: Tensor | None) -> tuple[int, int] | None:
    """Where in memory a parameter and its gradient begin; None if it is frozen, or none."""
    if parameter is None or not parameter.requires_grad:
        return None
    gradient = parameter.grad
    return parameter.data_ptr(), 0 if gradient is None else gradient.data_ptr()


def padded(num_elements: int) -> int:
    """How many elements of the buffer a parameter of so many takes."""
    return -(-num_elements // _ALIGNMENT) * _ALIGNMENT
