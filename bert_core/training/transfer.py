"""Micro-batches on the model's device before they are needed.

A GPU's host is ahead of it by a step: the batches of the next one are pinned and copied, on a
stream of their own, while this one is computed. A CPU has nothing to copy.
"""

from collections.abc import Callable, Iterable

import torch

from bert_core.batch import Batch

MicroBatches = Callable[[int], Iterable[tuple[int, Batch]]]


class DeviceBatches:
    """Hands over the micro-batches of a step on `device`; the host waits for no copy."""

    def __init__(self, micro_batches: MicroBatches, device: torch.device) -> None:
        self._micro_batches = micro_batches
        self._device = device
        self._copying = torch.cuda.Stream(device) if device.type == "cuda" else None

    def take(self, step: int) -> list[tuple[int, Batch]]:
        """The micro-batches of `step`, each with its index."""
        if self._copying is None:
            return [(index, batch.to(self._device)) for index, batch in self._micro_batches(step)]
        given = list(self._micro_batches(step))  # what it does itself, on the caller's stream
        with torch.cuda.stream(self._copying):
            batches = [(index, batch.to(self._device)) for index, batch in given]
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._copying)
        for _, batch in batches:
            for tensor in batch.tensors():
                # Its memory may be used again only once the other stream is done with it.
                tensor.record_stream(computing)
        return batches
