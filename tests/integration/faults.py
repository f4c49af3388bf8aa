"""Pretraining that is killed repeatedly ends like an uninterrupted run, bit for bit.

Two workers of one thread each on two nodes, which are separate raylets (`raylets.py`).
SIGKILL goes to a worker, the driver (which is started again) or a node's raylet (another node
joins), at random times drawn from the seed, some of them while a checkpoint is written.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.integration.raylets import Raylets, raylets
from tests.integration.recorded_training import (
    SETTINGS,
    Outcome,
    StepStart,
    TrainingRun,
    step_starts,
    wait_for_step,
)

Victim = Literal["worker", "driver", "node"]
# For every ten kills: who is killed, and whether while a checkpoint is written or at any time.
_VICTIMS: tuple[Victim, ...] = (
    "worker", "driver", "node", "worker", "worker", "driver", "node", "worker", "driver", "node",
)  # fmt: skip
_WHILE_WRITING = (True, True, False, True, False, False, True, False, False, False)
_STEPS_PER_KILL = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """What to kill, and when."""

    victim: Victim
    step: int  # not before a worker starts it
    while_writing: bool  # then wait until a checkpoint is being written
    delay: float  # seconds to wait after that
    choice: int  # which worker or node


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a kill interrupted, and how the training run resumed."""

    kill: Kill
    last_step: int  # started by a killed worker; a raylet's workers live a moment longer
    was_writing: bool  # whether a checkpoint was being written
    resumed_at: int
    seconds: float  # from the kill to the start of the first step afterwards
    ready_seconds: float  # of these, after the worker's process was ready


def plan(num_kills: int, seed: int) -> list[Kill]:
    """The kills in the order of their steps, the same for the same seed."""
    rng = random.Random(seed)
    steps = sorted(rng.sample(range(12, _STEPS_PER_KILL * num_kills), num_kills))
    kinds = [
        (_VICTIMS[number % len(_VICTIMS)], _WHILE_WRITING[number % len(_WHILE_WRITING)])
        for number in range(num_kills)
    ]
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


def settings(num_kills: int) -> dict[str, Any]:
    """Settings of a training run that is long enough for these kills."""
    num_steps = _STEPS_PER_KILL * (num_kills + 1)
    return {**SETTINGS, "num_steps": num_steps, "checkpoint_every_steps": 10}


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
            self._driver, self._notes, lambda b: b.step >= kill.step and b.process not in dead
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
            kill=kill,
            last_step=max(b.step for b in step_starts(self._notes) if b.process in before - dead),
            was_writing=was_writing,
            resumed_at=after.step,
            seconds=after.at - killed_at,
            ready_seconds=after.at - after.ready,
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
        newest: StepStart = max(
            (b for b in step_starts(self._notes) if b.rank == rank), key=lambda b: b.at
        )
        return newest.process

    def _saving(self) -> set[Path]:
        """Folders to which workers are writing checkpoints now, before they publish them."""
        return set(self._folders()) - self._left

    def _folders(self) -> Iterable[Path]:
        for node in self._cluster.nodes:
            yield from (node.folder / "tmp").glob("bertsmith-scratch-*")

    def _wait_for_writing(self) -> None:
        before = self._saving()
        deadline = time.monotonic() + 120
        while not self._saving() - before:
            if time.monotonic() > deadline or self._driver.poll() is not None:
                raise RuntimeError("no checkpoint was started")
            time.sleep(0.001)


def undisturbed(cluster: Raylets, data: dict[str, str], folder: Path, num_kills: int) -> Outcome:
    """The same training run without kills, on the same nodes."""
    training = _training(data, folder / "undisturbed", num_kills)
    return Outcome.of(training.start(**cluster.driver_env))


def disturbed(
    data: dict[str, str], folder: Path, kills: list[Kill]
) -> tuple[Outcome, Outcome, list[Recovery]]:
    """The outcomes of a training run without and with `kills`, and its recoveries."""
    with raylets() as cluster:
        cluster.join_all(1, 1)
        alone = undisturbed(cluster, data, folder, len(kills))
        training = Disturbed(cluster, _training(data, folder / "disturbed", len(kills)))
        recoveries = []
        for kill in kills:
            recoveries.append(training.apply(kill))
            sys.stderr.write(f"{recoveries[-1]}\n")
        return alone, training.end(), recoveries


def _training(data: dict[str, str], folder: Path, num_kills: int) -> TrainingRun:
    return TrainingRun(
        **data, store=str(folder / "store"), record=str(folder / "notes"), workers=2,
        settings=settings(num_kills),
    )  # fmt: skip
