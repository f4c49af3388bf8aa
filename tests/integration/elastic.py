"""Pretraining on 1, 2 and 4 workers, and on 2, then 1, then 2, as nodes leave and join.

Nodes are separate raylets on this machine (`raylets.py`); one gets SIGKILL in the middle
of a step, another one joins later. Every worker records its micro-batches of each step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.raylets import raylets
from tests.integration.recorded_training import (
    SETTINGS,
    Outcome,
    StepStart,
    TrainingRun,
    batches_by_step,
    step_starts,
    wait_for_step,
)

NUM_STEPS = 200
LOST_AT_STEP = 15
JOINED_STEPS_LATER = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished training run."""

    outcome: Outcome
    starts: list[StepStart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the number of workers."""

    what: str
    num_ranks: int  # afterwards
    last_step: int  # the last one started before it
    resumed_at: int  # the first step afterwards
    seconds: float  # from the event to the start of that step


def settings(num_steps: int) -> dict[str, Any]:
    """Settings of the training runs that are compared."""
    return {**SETTINGS, "num_steps": num_steps, "checkpoint_every_steps": 10}


def fixed(data: dict[str, str], folder: Path, num_steps: int, counts: list[int]) -> dict[int, Run]:
    """A training run for each number of workers, one after the other, on one node."""
    runs = {}
    with raylets(max(counts)) as cluster:
        for count in counts:
            training = TrainingRun(
                **data, store=str(folder / f"store{count}"), record=str(folder / f"notes{count}"),
                workers=count, settings=settings(num_steps),
            )  # fmt: skip
            outcome = Outcome.of(training.start(**cluster.driver_env))
            runs[count] = Run(outcome=outcome, starts=step_starts(Path(training.record)))
    return runs


def changing(data: dict[str, str], folder: Path, num_steps: int) -> tuple[Run, list[Change]]:
    """A training run on two nodes, then one, then two again."""
    training = TrainingRun(
        **data, store=str(folder / "changing"), record=str(folder / "notes"), workers=(1, 2),
        settings=settings(num_steps), slow_seconds=1.0,
    )  # fmt: skip
    notes = Path(training.record)
    with raylets() as cluster:
        _, second = cluster.join_all(1, 1)
        driver = training.start(**cluster.driver_env)

        def first(wanted: Callable[[StepStart], bool]) -> StepStart:
            return wait_for_step(driver, notes, wanted)

        first(lambda b: b.step >= LOST_AT_STEP and b.num_ranks == 2)
        lost = time.time()
        cluster.lose(second)
        alone = first(lambda b: b.at > lost and b.num_ranks == 1)
        first(lambda b: b.at > alone.at and b.step >= alone.step + JOINED_STEPS_LATER)
        joined = time.time()
        cluster.join(1)
        together = first(lambda b: b.at > joined and b.num_ranks == 2)
        training.hurry()
        run = Run(outcome=Outcome.of(driver), starts=step_starts(notes))

    def change(what: str, event: float, after: StepStart) -> Change:
        last = max(b.step for b in run.starts if b.at <= event and b.num_ranks != after.num_ranks)
        return Change(
            what=what, num_ranks=after.num_ranks, last_step=last, resumed_at=after.step,
            seconds=after.at - event,
        )  # fmt: skip

    return run, [
        change("a node is lost", lost, alone),
        change("a node joins", joined, together),
    ]


def largest_difference(run: Run, other: Run) -> float:
    """The largest relative difference between the losses of a step."""
    ours, theirs = run.outcome.losses(), other.outcome.losses()
    assert ours.keys() == theirs.keys()
    return max(abs(loss / theirs[step] - 1) for step, loss in ours.items())


def same_batches(run: Run, other: Run) -> bool:
    """Whether each micro-batch of each step was always the same, whichever worker got it."""
    return batches_by_step(run.starts) == batches_by_step(other.starts)
