"""Which steps are skipped: a loss or gradient that is not finite, a norm that is far too large.

Decided on the device, from figures that are the same on every rank: no host waits, and all ranks
decide the same. What was skipped stays there until it is read.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from bert_core.config import check_whole

# Norms of this many taken steps are kept. Before there are as many no norm is too large: the first
# ones of a training run fall steeply.
WINDOW: Final = 64
RECORD: Final = 256  # unread skipped steps that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """When a step is skipped, and when training stops.

    Args:
        spike_factor: a gradient's norm is too large above this many times the median of the last
            `WINDOW` taken steps, or this many times `max_grad_norm` if that is larger; None: no
            norm is too large.
        max_skipped_in_a_row: this many skipped steps in a row end training with an error.

    Raises ValueError for impossible values.
    """

    spike_factor: float | None = 100.0
    max_skipped_in_a_row: int = 5

    def __post_init__(self) -> None:
        if self.spike_factor is not None and not self.spike_factor > 1:
            raise ValueError(
                f"spike_factor must be a number above 1 or None, got {self.spike_factor}"
            )
        check_whole("max_skipped_in_a_row", self.max_skipped_in_a_row, 1)


class SkippedStep(NamedTuple):
    """A step that was not taken, and why."""

    step: int
    loss: float
    grad_norm: float
    limit: float  # the largest norm allowed; infinite before there is a median

    def __str__(self) -> str:
        if math.isfinite(self.loss) and math.isfinite(self.grad_norm):
            return (
                f"the gradient of step {self.step} is out of all proportion "
                f"(norm {self.grad_norm:.4g}, at most {self.limit:.4g})"
            )
        figure = "gradient" if math.isfinite(self.loss) else "loss"
        return f"the {figure} of step {self.step} is not finite"


class SkippedStepsError(FloatingPointError):
    """Too many steps in a row could not be taken; the weights are those before the first."""


class Guard:
    """Decides for each step whether it is taken; its state belongs to a run's checkpoint."""

    def __init__(
        self, config: GuardConfig, max_grad_norm: float | None, device: torch.device
    ) -> None:
        self.config = config
        self._floor = max_grad_norm or 0.0
        self._norms = torch.zeros(WINDOW, device=device)
        self._num_taken, self._num_in_a_row, self._num_skipped = (
            torch.zeros(1, dtype=torch.int64, device=device) for _ in range(3)
        )
        columns = len(SkippedStep._fields)
        self._skipped = torch.zeros(RECORD, columns, dtype=torch.float64, device=device)
        self._num_read = 0

    @torch.no_grad()
    def should_skip(self, step: int, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """Whether to skip `step`, [] bool on the device. Once a step, before the update.

        After too many in a row every step is skipped, until a state is loaded.
        """
        limit = self._limit()
        was_halted = self.is_halted
        is_fine = loss.isfinite() & grad_norm.isfinite() & (grad_norm <= limit)
        number = torch.full((), step, dtype=torch.float64, device=loss.device)
        row = torch.stack([number, loss.double(), grad_norm.double(), limit.double()])
        is_new = ~is_fine & ~was_halted
        place = self._num_skipped % RECORD
        self._skipped[place] = torch.where(is_new, row, self._skipped[place])
        self._num_skipped += is_new
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

    @property
    def is_halted(self) -> Tensor:
        """[] bool: whether too many steps in a row were skipped; on the device."""
        return self._num_in_a_row[0] >= self.config.max_skipped_in_a_row

    @property
    def has_taken(self) -> bool:
        """Whether any step was taken; waits for the device."""
        return bool(self._num_taken)

    def new_skipped(self) -> list[SkippedStep]:
        """Steps skipped since the last call, the latest `RECORD` of them; waits for the device."""
        count = int(self._num_skipped)
        first = max(self._num_read, count - RECORD)
        self._num_read = count
        return [self._skipped_step(number) for number in range(first, count)]

    def error(self, diagnosis: str = "") -> SkippedStepsError:
        """What ends training when its last steps were skipped; waits for the device."""
        last, in_a_row = self._skipped_step(int(self._num_skipped) - 1), int(self._num_in_a_row)
        steps = "a step" if in_a_row == 1 else f"{in_a_row} steps in a row"
        return SkippedStepsError(
            f"{steps} had to be skipped: {last}; "
            f"{diagnosis}{'; ' if diagnosis else ''}lower the learning rate, lengthen the warm-up, "
            "train in float32, look at the data of these steps, or raise spike_factor where such "
            "norms are healthy"
        )

    def _skipped_step(self, number: int) -> SkippedStep:
        step, *figures = self._skipped[number % RECORD].tolist()
        return SkippedStep(int(step), *figures)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next decision depends on, by name; the same on every rank."""
        return {
            "norms": self._norms,
            "num_taken": self._num_taken,
            "num_in_a_row": self._num_in_a_row,
        }

    def load(self, saved: dict[str, Tensor]) -> None:
        """Go on where `tensors` was taken."""
        self._num_skipped.zero_()
        self._num_read = 0
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])
