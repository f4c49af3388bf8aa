"""Pretraining that is killed at random instants ends like an uninterrupted run, bit for bit.

Two workers of one thread each on two nodes, which are separate raylets (`raylets.py`).
SIGKILL goes to a worker, the driver (which is started again) or a node's raylet (another node
joins), at random times drawn from the seed, some of them while a checkpoint is written.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from pipelines.store import Artifact
from tests.integration.raylets import Raylets, raylets
from tests.integration.recorded_training import (
    SETTINGS,
    Outcome,
    TrainingRun,
    step_starts,
    wait_for_step,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

Victim = Literal["worker", "driver", "node"]
# Who is killed, and whether while a checkpoint is written or at any time.
KINDS: tuple[tuple[Victim, bool], ...] = (
    ("worker", True), ("driver", True), ("node", False), ("worker", False),
)  # fmt: skip
STEPS_PER_KILL, INTERVAL = 20, 10


class Kill(NamedTuple):
    """What to kill, and when."""

    victim: Victim
    step: int  # not before a worker starts it
    while_writing: bool  # then wait until a checkpoint is being written
    delay: float  # seconds to wait after that
    choice: int  # which worker or node


class Recovery(NamedTuple):
    """What a kill interrupted, and how the training run resumed."""

    last_step: int  # started by a killed worker; a raylet's workers live a moment longer
    was_writing: bool  # whether a checkpoint was being written
    resumed_at: int


def plan(seed: int) -> list[Kill]:
    """The kills in the order of their steps, the same for the same seed."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    steps = sorted(rng.sample(range(12, STEPS_PER_KILL * len(kinds)), len(kinds)))
    rng.shuffle(kinds)
    return [
        Kill(
            victim=victim,
            step=step,
            while_writing=while_writing,
            delay=rng.uniform(0, 0.02 if while_writing else 0.2),
            choice=rng.randrange(2),
        )
        for step, (victim, while_writing) in zip(steps, kinds, strict=True)
    ]


class Disturbed:
    """A training run that is killed repeatedly."""

    def __init__(self, cluster: Raylets, training: TrainingRun) -> None:
        self._cluster = cluster
        self._training = training
        self._notes = Path(training.record)
        self._driver = self._start()
        self._left: set[Path] = set()  # by saves that a kill interrupted
        self._dead: set[int] = set()  # processes of killed workers

    def apply(self, kill: Kill) -> Recovery:
        """Wait for the time of the kill, kill, and wait until the training run has resumed."""
        dead = frozenset(self._dead)
        wait_for_step(
            self._driver,
            self._notes,
            lambda b: b.step >= kill.step and b.process not in dead and b.rank == kill.choice,
        )
        if kill.while_writing:
            self._wait_for_writing()
        time.sleep(kill.delay)
        was_writing = bool(self._saving())
        killed_at = time.time()
        self._kill(kill)
        before = {b.process for b in step_starts(self._notes) if b.at <= killed_at} | dead
        if kill.victim == "driver":
            self._driver = self._start()
        elif kill.victim == "node":
            self._cluster.join(1)
        after = wait_for_step(self._driver, self._notes, lambda b: b.process not in before)
        self._dead |= before
        self._left = set(self._folders())
        return Recovery(
            last_step=max(b.step for b in step_starts(self._notes) if b.process in before - dead),
            was_writing=was_writing,
            resumed_at=after.step,
        )

    def end(self) -> Outcome:
        """Wait until the training run ends."""
        return Outcome.of(self._driver)

    def _start(self) -> "subprocess.Popen[str]":
        return self._training.start(**self._cluster.driver_env)

    def _kill(self, kill: Kill) -> None:
        if kill.victim == "driver":
            self._driver.kill()
            self._driver.communicate()
        elif kill.victim == "node":
            self._cluster.lose(self._cluster.nodes[kill.choice])
        else:
            os.kill(self._worker(kill.choice), signal.SIGKILL)

    def _worker(self, rank: int) -> int:
        return [b.process for b in step_starts(self._notes) if b.rank == rank][-1]

    def _saving(self) -> set[Path]:
        """Folders to which workers are writing checkpoints now, before they publish them."""
        return set(self._folders()) - self._left

    def _folders(self) -> Iterable[Path]:
        for node in self._cluster.nodes:
            yield from (node.folder / "tmp").glob("bertsmith-scratch-*")

    def _wait_for_writing(self) -> None:
        before, driver = self._saving(), self._driver
        wait_for(lambda: self._saving() - before or driver.poll() is not None, "a save", 120, 0.001)
        assert driver.poll() is None


def test_a_training_that_is_killed_again_and_again_ends_with_the_same_bits(
    small_examples: Artifact, small_vocabulary: Artifact, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        **SETTINGS,
        "num_steps": STEPS_PER_KILL * (len(KINDS) + 1),
        "checkpoint_every_steps": INTERVAL,
    }

    def training(name: str) -> TrainingRun:
        return TrainingRun(
            data=str(Path(small_examples.root).parents[1]), examples=small_examples.fingerprint,
            vocabulary=small_vocabulary.fingerprint, store=str(tmp_path / name / "store"),
            record=str(tmp_path / name / "notes"), workers=2, settings=settings,
        )  # fmt: skip

    with raylets() as cluster:
        cluster.join_all(1, 1)
        alone = Outcome.of(training("undisturbed").start(**cluster.driver_env))
        disturbed = Disturbed(cluster, training("disturbed"))
        recoveries = [disturbed.apply(kill) for kill in plan(seed=0)]
        met = disturbed.end()
    assert any(recovery.was_writing for recovery in recoveries)
    for recovery in recoveries:
        assert recovery.resumed_at <= recovery.last_step + 1
        assert recovery.resumed_at % INTERVAL == 0  # a checkpoint's step
        # Of those that were due the newest alone may have been on its way.
        newest_due = recovery.last_step // INTERVAL * INTERVAL
        assert recovery.resumed_at >= newest_due - INTERVAL
    assert any(recovery.resumed_at > 0 for recovery in recoveries)
    assert met.history == alone.history
    assert met.weights == alone.weights
