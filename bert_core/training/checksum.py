"""A number that stands for many tensors: ranks compare it where they cannot compare the tensors."""

from collections.abc import Iterable

import torch
from torch import Tensor

_CHUNK = 1 << 22  # elements that are weighed at once


def checksum(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """[2] int64: the sum of all bits, plain and by position; on the device, exact in any order."""
    total = torch.zeros(2, dtype=torch.int64, device=device)
    position = 0
    for tensor in tensors:
        # In pieces of four bytes, or of one where that does not come out even.
        flat = tensor.detach().contiguous().view(-1)
        words = flat.view(torch.int32) if flat.element_size() % 4 == 0 else flat.view(torch.uint8)
        for part in words.split(_CHUNK):
            places = torch.arange(position, position + len(part), device=device)
            total[0] += part.sum(dtype=torch.int64)
            total[1] += (part.long() * (2 * places + 1)).sum()
            position += len(part)
    return total
