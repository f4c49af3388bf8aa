"""What a step takes, read off a training that goes on until enough was measured."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.loop import SETTLING_BATCHES, MicroBatches
from pipelines.stages.pretraining.budget import StepRate
from pipelines.training.reduction import sum_over_ranks
from pipelines.training.worker import this_rank

MOST_STEPS: Final = SETTLING_BATCHES + 400  # that a measurement takes

_MEASURED_SECONDS: Final = 20.0  # what else a machine does changes within ten
_FEWEST_MEASURED: Final = 3


@dataclass(slots=True)
class Stopwatch:
    """Looks at the clock where a training begins a step, ends one, evaluates and has saved."""

    started: float = 0.0
    settled: float = 0.0
    settled_steps: int = 0  # 0: not yet
    num_taken: int = 0  # micro-batches of this rank
    last_step: int = 0
    ended: float = 0.0
    evaluated: list[float] = field(default_factory=list)  # before, between and after two

    def from_first(self, micro_batches: MicroBatches) -> MicroBatches:
        """The same; the clock starts where a step first asks for its batches."""

        def watched(step: int) -> Iterator[tuple[int, Batch]]:
            self.started = self.started or _now()
            for numbered in micro_batches(step):
                self.num_taken += 1
                yield numbered

        return watched

    def is_enough(self, done: int) -> bool:
        """Whether enough was measured after `done` steps; the same on all ranks."""
        now = _now()
        if not self.settled_steps:
            # Until then new shapes wait for their products, and every block for fresh pages: a
            # step of long training takes a third more.
            if _of_first_rank(self.num_taken) >= SETTLING_BATCHES:
                self.settled_steps, self.settled = done, now
            return False
        self.last_step, self.ended = done, now
        passed, measured = _of_first_rank(now - self.settled), done - self.settled_steps
        return done >= MOST_STEPS or (measured >= _FEWEST_MEASURED and passed >= _MEASURED_SECONDS)

    def evaluations(
        self, evaluate: Callable[[TrainableModel], dict[str, float]]
    ) -> Callable[[TrainableModel], dict[str, float]]:
        """The same twice: the first one has more to do."""

        def watched(model: TrainableModel) -> dict[str, float]:
            self.evaluated = [_now()]
            for _ in range(2):
                figures = evaluate(model)
                self.evaluated.append(_now())
            return figures

        return watched

    def rate(self) -> StepRate:
        """What was measured; called when the checkpoint is saved."""
        assert self.ended > self.settled, "the training ended before enough was measured"
        step = (self.ended - self.settled) / (self.last_step - self.settled_steps)
        before, between, after = self.evaluated
        return StepRate(
            step=step,
            start=max(0.0, self.settled - self.started - self.settled_steps * step),
            evaluation=after - between,
            first_evaluation=between - before,
            checkpoint=_now() - after,
        )


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _of_first_rank(value: float) -> float:
    """What rank 0 says; all ranks call it."""
    return float(sum_over_ranks(np.array([value if this_rank()[0] == 0 else 0.0]))[0])
