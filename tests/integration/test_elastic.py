"""Workers come and go; the steps stay the same.

Pretraining on 1 and 4 workers, and on 2, then 1, then 2, as nodes leave and join. Nodes are
separate raylets on this machine (`raylets.py`); one gets SIGKILL in the middle of a step, another
one joins later. Every worker records its micro-batches of each step.
"""

import time
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipelines.store import Artifact
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

pytestmark = pytest.mark.slow

NUM_STEPS, INTERVAL = 120, 10
LOST_AT_STEP = 15
JOINED_STEPS_LATER = 15


class Run(NamedTuple):
    """A finished training run."""

    outcome: Outcome
    starts: list[StepStart]


def training_of(data: dict[str, str], folder: Path, **more: Any) -> TrainingRun:
    return TrainingRun(
        **data, store=str(folder / "store"), record=str(folder / "notes"),
        settings={**SETTINGS, "num_steps": NUM_STEPS, "checkpoint_every_steps": INTERVAL}, **more,
    )  # fmt: skip


def fixed(data: dict[str, str], folder: Path, counts: list[int]) -> dict[int, Run]:
    """A training run for each number of workers, one after the other, on one node."""
    runs = {}
    with raylets(max(counts)) as cluster:
        for count in counts:
            training = training_of(data, folder / str(count), workers=count)
            outcome = Outcome.of(training.start(**cluster.driver_env))
            runs[count] = Run(outcome, step_starts(Path(training.record)))
    return runs


def changing(data: dict[str, str], folder: Path) -> Run:
    """A training run on two nodes, then one, then two again."""
    training = training_of(data, folder / "changing", workers=(1, 2), slow_seconds=0.5)
    notes = Path(training.record)
    with raylets() as cluster:
        _, second = cluster.join_all(1, 1)
        driver = training.start(**cluster.driver_env)
        wait_for_step(driver, notes, lambda b: b.step >= LOST_AT_STEP and b.num_ranks == 2)
        lost = time.time()
        cluster.lose(second)
        alone = wait_for_step(driver, notes, lambda b: b.at > lost and b.num_ranks == 1)
        enough = alone.step + JOINED_STEPS_LATER
        wait_for_step(driver, notes, lambda b: b.at > alone.at and b.step >= enough)
        joined = time.time()
        cluster.join(1)
        wait_for_step(driver, notes, lambda b: b.at > joined and b.num_ranks == 2)
        training.hurry()
        return Run(Outcome.of(driver), step_starts(notes))


def test_one_and_four_workers_and_two_one_two_take_the_same_steps(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    data = {
        "data": str(Path(small_examples.root).parents[1]),
        "examples": small_examples.fingerprint,
        "vocabulary": small_vocabulary.fingerprint,
    }
    runs = fixed(data, tmp_path, [1, 4])
    changed = changing(data, tmp_path)
    assert len(changed.outcome.resumed_from) == 2
    noted = [list(group) for _, group in groupby(changed.starts, lambda b: b.num_ranks)]
    assert [group[0].num_ranks for group in noted] == [2, 1, 2]
    assert [group[0].step for group in noted[1:]] == changed.outcome.resumed_from
    for before, after in pairwise(noted):
        last_step, resumed_at = max(b.step for b in before), after[0].step
        # From the newest checkpoint that was due, or the one before where it was on its way.
        newest_due = last_step // INTERVAL * INTERVAL
        assert max(newest_due - INTERVAL, INTERVAL) <= resumed_at <= last_step + 1
    alone = runs[1].outcome.losses()
    assert len(alone) == NUM_STEPS
    for run in (runs[4], changed):
        assert run.outcome.losses() == pytest.approx(alone, rel=1e-4)
        # Each micro-batch of each step was always the same, whichever worker got it.
        assert batches_by_step(run.starts) == batches_by_step(runs[1].starts)
