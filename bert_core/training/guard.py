"""Which steps are skipped: a loss or gradient that is not finite, a norm that is far too large.

Decided on the device, from figures that are the same on every rank: no host waits, and all ranks
decide the same. The findings stay there until they are read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from bert_core.config import check_whole

# Norms of this many taken steps are kept. Before there are as many no norm is too large: the first
# ones of a training run fall steeply.
WINDOW: Final = 64
RECORD: Final = 256  # unread findings that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """When a step is skipped, and when training stops.

    Args:
        spike_factor: a gradient's norm is too large above this many times the median of the last
            `WINDOW` taken steps, or this many times `max_grad_norm` if that is larger; None: no
            norm is too large.
        max_skipped_in_a_row: this many skipped steps in a row halt the training run.

    Raises ValueError for impossible values.
    """

    spike_factor: float | None = 100.0
    max_skipped_in_a_row: int = 5

    def __post_init__(self) -> None:
        factor = self.spike_factor
        if factor is not None and not (isinstance(factor, Real) and factor > 1):
            raise ValueError(f"spike_factor must be a number above 1 or None, got {factor!r}")
        check_whole("max_skipped_in_a_row", self.max_skipped_in_a_row, 1)


class Finding(NamedTuple):
    """Why a step was skipped."""

    step: int
    loss: float
    grad_norm: float
    limit: float  # the largest norm allowed; infinite before there is a median

    def __str__(self) -> str:
        if not math.isfinite(self.loss):
            return f"the loss of step {self.step} is not finite ({self.loss})"
        if not math.isfinite(self.grad_norm):
            return f"the gradient of step {self.step} is not finite (norm {self.grad_norm})"
        return (
            f"the gradient of step {self.step} is out of all proportion "
            f"(norm {self.grad_norm:.4g}, at most {self.limit:.4g})"
        )


class SkippedStepsError(FloatingPointError):
    """Too many steps in a row could not be taken; the weights are those before the first of them.

    `found` are the unread findings; those in a row are the last.
    """

    def __init__(self, found: Sequence[Finding], first_step: int, num_in_a_row: int) -> None:
        what = f"{num_in_a_row} steps in a row" if num_in_a_row > 1 else "a step"
        super().__init__(
            f"{found[-1]}, so it was skipped, and training ends after {what}; "
            "lower the learning rate, lengthen the warm-up or train in float32"
        )
        self.found = tuple(found)
        self.first_step = first_step  # of those in a row
        self.num_in_a_row = num_in_a_row

    @property
    def last_step(self) -> int:
        """The last of the steps in a row; none was taken after it."""
        return self.found[-1].step

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.found, self.first_step, self.num_in_a_row)


class Guard:
    """Decides for each step whether it is taken; its state belongs to a run's checkpoint."""

    def __init__(
        self, config: GuardConfig, max_grad_norm: float | None, device: torch.device
    ) -> None:
        self.config = config
        self._floor = max_grad_norm or 0.0
        self._norms = torch.zeros(WINDOW, device=device)
        self._num_taken = torch.zeros(1, dtype=torch.int64, device=device)
        self._num_in_a_row = torch.zeros(1, dtype=torch.int64, device=device)
        self._first_in_row = torch.zeros(1, dtype=torch.int64, device=device)
        self._num_found = torch.zeros(1, dtype=torch.int64, device=device)
        self._found = torch.zeros(RECORD, len(Finding._fields), dtype=torch.float64, device=device)

    @torch.no_grad()
    def should_skip(self, step: int, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Whether to skip `step`, [] bool on the device. Once a step, before the update.

        After too many in a row every step is skipped, until a state is loaded.
        """
        limit = self._limit()
        was_halted = self.is_halted
        is_fine = loss.isfinite() & grad_norm.isfinite() & (grad_norm <= limit)
        self._write_down(~is_fine & ~was_halted, step, loss, grad_norm, limit)
        begins = ~is_fine & (self._num_in_a_row == 0)
        self._first_in_row.masked_fill_(begins, step)
        in_a_row = (self._num_in_a_row + 1).masked_fill_(is_fine, 0)
        self._num_in_a_row.copy_(torch.where(was_halted, self._num_in_a_row, in_a_row))
        is_taken = is_fine & ~was_halted
        place = self._num_taken % WINDOW
        self._norms[place] = torch.where(is_taken, grad_norm.float(), self._norms[place])
        self._num_taken += is_taken
        return ~is_taken

    def _limit(self) -> Tensor:
        if self.config.spike_factor is None:
            return torch.full_like(self._norms[0], math.inf)
        median = self._norms.sort().values[WINDOW // 2]
        limit = self.config.spike_factor * median.clamp(min=self._floor)
        return limit.masked_fill(self._num_taken[0] < WINDOW, math.inf)

    def _write_down(
        self, is_found: Tensor, step: int, loss: Tensor, grad_norm: Tensor, limit: Tensor
    ) -> None:
        number = torch.full((), step, dtype=torch.float64, device=loss.device)
        row = torch.stack([number, loss.double(), grad_norm.double(), limit.double()])
        place = self._num_found % RECORD
        self._found[place] = torch.where(is_found, row, self._found[place])
        self._num_found += is_found

    @property
    def is_halted(self) -> Tensor:
        """[] bool: whether too many steps in a row were skipped; on the device."""
        return self._num_in_a_row[0] >= self.config.max_skipped_in_a_row

    @property
    def is_skipping(self) -> bool:
        """Whether the last step was skipped; waits for the device."""
        return bool(self._num_in_a_row)

    def found(self) -> list[Finding]:
        """What was found since `forget`, the latest `RECORD` of it; waits for the device."""
        count = int(self._num_found)
        rows = self._found.tolist()
        kept = (rows[number % RECORD] for number in range(max(0, count - RECORD), count))
        return [Finding(int(step), *figures) for step, *figures in kept]

    def forget(self) -> None:
        """Make room for new findings, once the others have been read."""
        self._num_found.zero_()

    def raise_if_halted(self) -> None:
        """Raise SkippedStepsError after too many steps in a row; waits for the device.

        On several ranks all of them raise or none.
        """
        if self.is_halted:
            first, count = int(self._first_in_row), int(self._num_in_a_row)
            raise SkippedStepsError(self.found(), first, count)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next decision depends on, by name; the same on every rank."""
        return {
            "norms": self._norms,
            "num_taken": self._num_taken,
            "num_in_a_row": self._num_in_a_row,
            "first_in_row": self._first_in_row,
        }

    def load(self, saved: dict[str, Tensor] | None) -> None:
        """Go on where `tensors` was taken; None: as at the beginning. Findings are forgotten."""
        self.forget()
        for name, tensor in self.tensors().items():
            if saved is None:
                tensor.zero_()
            else:
                tensor.copy_(saved[name])
