"""All parameters that are trained in one buffer, and their gradients in another.

One buffer makes the optimizer's update, the gradient norm, the exchange between machines and the
copy in a lower precision one call each, whatever the number of layers.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from bert_core.backends.precision import ComputeWeight

_ALIGNMENT = 64  # elements; every parameter starts on a cache line in every number format


class ParameterArena:
    """Moves the trainable parameters of `model` into one buffer, those that decay first.

    The parameters stay what they were to everybody else: views of `values`, with views of
    `gradients` as their gradients. Frozen ones (`requires_grad=False`) stay where they are and
    have no gradients. Build it once the model is on its device.

    Raises ValueError where nothing is trainable, or a parameter is not float32 on that device.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError("there is nothing to train: no parameter requires a gradient")
        # Biases and normalization do not decay; they are all the parameters with one dimension.
        named.sort(key=lambda item: item[1].ndim < 2)
        device = named[0][1].device
        self._parameters = dict(named)
        self._frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        self._offsets: dict[str, int] = {}
        size = 0
        for name, parameter in named:
            if parameter.dtype != torch.float32 or parameter.device != device:
                raise ValueError(
                    f"every parameter must be float32 on {device}, got {name} as "
                    f"{parameter.dtype} on {parameter.device}"
                )
            self._offsets[name] = size
            size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        undecayed = (self._offsets[name] for name, p in named if p.ndim < 2)
        self.num_decayed = next(undecayed, size)
        self.values = torch.zeros(size, device=device)
        self.gradients = torch.zeros(size, device=device)
        self._copies: dict[torch.dtype, Tensor] = {}
        self._compute_weights: dict[torch.dtype, dict[Tensor, ComputeWeight]] = {}
        self._adopt()

    @torch.no_grad()
    def _adopt(self) -> None:
        values, gradients = self.views(self.values), self.views(self.gradients)
        for name, parameter in self._parameters.items():
            values[name].copy_(parameter)
            parameter.data = values[name]
            parameter.grad = gradients[name]

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """A buffer of this layout, cut into tensors of the parameters' shapes.

        A buffer of the decaying part alone gives the views of that part.
        """
        return {
            name: buffer[offset : offset + parameter.numel()].view(parameter.shape)
            for (name, parameter), offset in zip(
                self._parameters.items(), self._offsets.values(), strict=True
            )
            if offset < buffer.numel()
        }

    def split(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        """The part of `buffer` that decays and the part that does not; either may be empty."""
        return buffer[: self.num_decayed], buffer[self.num_decayed :]

    def compute_weights(self, dtype: torch.dtype) -> Mapping[Tensor, ComputeWeight]:
        """What layers compute with, by parameter: matrices copied to `dtype` now, and `main_grad`.

        Raises ValueError where a parameter was frozen or made trainable since the arena was built.
        """
        self._refuse_changed()
        if dtype not in self._compute_weights:
            self._compute_weights[dtype] = self._new_compute_weights(dtype)
        if dtype in self._copies:
            self._copies[dtype].copy_(self.values[: self.num_decayed])
        return self._compute_weights[dtype]

    def _new_compute_weights(self, dtype: torch.dtype) -> dict[Tensor, ComputeWeight]:
        values, gradients = self.views(self.values), self.views(self.gradients)
        if dtype != torch.float32:
            decayed = self.values[: self.num_decayed]
            self._copies[dtype] = torch.empty_like(decayed, dtype=dtype)
            values |= self.views(self._copies[dtype])
        return {
            parameter: ComputeWeight(values[name], gradients[name])
            for name, parameter in self._parameters.items()
        }

    def _refuse_changed(self) -> None:
        changed = [name for name, p in self._parameters.items() if not p.requires_grad]
        changed += [name for name, p in self._frozen.items() if p.requires_grad]
        if changed:
            raise ValueError(
                "what is trained must not change under an optimizer, found another requires_grad "
                f"at {', '.join(changed)}; freeze the model first, then build its optimizer"
            )

    def names(self) -> Iterator[str]:
        """The trainable parameters' names in the order of the buffer."""
        return iter(self._parameters)

    def check_names(self, names: Iterable[str], what: str) -> None:
        """Raise ValueError where `names` are not exactly this arena's."""
        ours, theirs = set(self._parameters), set(names)
        if ours != theirs:
            raise ValueError(
                f"{what} must hold the trainable parameters of this model: missing "
                f"{sorted(ours - theirs) or 'none'}, unexpected {sorted(theirs - ours) or 'none'}; "
                "freeze what the run that saved it had frozen, nothing else"
            )
