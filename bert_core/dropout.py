"""Dropout that depends on where training stands and on nothing else.

Which elements are dropped is a function of (seed, step, micro-batch, call, element): a resumed run
draws what the killed one would have drawn, whatever other generators did.

Random numbers were a fifth of a step's time. Here a micro-batch draws one pool of random words;
a call takes the exclusive or of two stretches of it, at places that are its own.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bert_core.randomness import fold_in, random_bits

_POOL = 1 << 20  # words of 16 bits
# Words taken at a time. A CPU's stay in its cache and are few enough that torch does not spread
# them over threads, whose meeting costs more than the work; a GPU wants few calls.
_CPU_STRETCH = 1 << 15
_GPU_STRETCH = 1 << 18
_BITS = 15  # of randomness an element gets: rates are exact to 1 in 32,768


@dataclass(slots=True)
class DropoutKeys:
    """The random choices of one micro-batch's dropout calls, in the order of the calls."""

    stream: int
    _pool: Tensor | None = field(default=None, init=False)
    _num_drawn: int = field(default=0, init=False)

    @classmethod
    def at(cls, seed: int, step: int, micro_batch: int) -> "DropoutKeys":
        """The choices of one micro-batch of a step, counted over all ranks."""
        return cls(int(random_bits(seed, "dropout", step, micro_batch)))

    def signs(self, num_elements: int, rate: float, device: torch.device) -> Tensor:
        """int16 numbers that are negative where an element is dropped, with probability `rate`."""
        if self._pool is None:
            self._pool = _random_words(self.stream, device)
        result = torch.empty(num_elements, dtype=torch.int16, device=device)
        stretch = _CPU_STRETCH if device.type == "cpu" else _GPU_STRETCH
        parts = result.split(stretch)
        places = fold_in(self.stream, np.arange(self._num_drawn, self._num_drawn + len(parts)))
        self._num_drawn += len(parts)
        lefts = (places & 0xFFFFFFFF) % (_POOL - stretch)
        rights = (places >> 32) % (_POOL - stretch)
        threshold = round(rate * (1 << _BITS))
        for part, left, right in zip(parts, lefts.tolist(), rights.tolist(), strict=True):
            size = part.numel()
            torch.bitwise_xor(
                self._pool[left : left + size], self._pool[right : right + size], out=part
            )
            part.bitwise_and_((1 << _BITS) - 1).sub_(threshold)
        return result

    def scale(self, values: Tensor, rate: float) -> Tensor:
        """In the shape and format of `values`: 0 where dropped, 1 / (1 - rate) elsewhere."""
        signs = self.signs(values.numel(), rate, values.device).view(values.shape)
        if values.dtype != torch.bfloat16:
            return (signs >= 0).to(values.dtype).mul_(1 / (1 - rate))
        # The same by bits: all of them, shifted out of the sign, keep those of the factor.
        factor = torch.tensor(1 / (1 - rate), dtype=torch.bfloat16).view(torch.int16).item()
        return signs.bitwise_right_shift_(15).bitwise_not_().bitwise_and_(factor).view(values.dtype)


def _random_words(stream: int, device: torch.device) -> Tensor:
    words = np.random.SFC64(stream).random_raw(_POOL // 4).view(np.int16)
    return torch.from_numpy(words).to(device, non_blocking=True)


def dropout_scale(values: Tensor, rate: float, keys: DropoutKeys | None) -> Tensor | None:
    """What `values` are to be multiplied by; None where nothing is dropped."""
    return None if keys is None or rate == 0.0 else keys.scale(values, rate)


def dropout(values: Tensor, rate: float, keys: DropoutKeys | None) -> Tensor:
    """Zero elements at `rate` and scale the rest by 1 / (1 - rate); without keys, do nothing."""
    scale = dropout_scale(values, rate, keys)
    return values if scale is None else values * scale
