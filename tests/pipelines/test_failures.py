"""When a training run that finds no places for its workers gives up, and what it says."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pipelines.config.errors import UserError
from pipelines.tracking.transient import is_transient
from pipelines.training.failures import EndOnLongOutage, raise_sentence
from pipelines.training.placement import Placement
from pipelines.training.preflight import within_memory

from ray.exceptions import OutOfMemoryError, RayActorError  # isort: skip  (after Ray's environment)
from ray.train import ControllerError, WorkerGroupError  # isort: skip
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupFailedError,
    WorkerGroupStartupTimeoutError,
)
from ray.train.v2._internal.execution.controller.state import (
    InitializingState,
    ReschedulingState,
    RestartingState,
    RunningState,
    SchedulingState,
)
from ray.train.v2._internal.execution.scaling_policy import ResizeDecision

TWO_NODES = [{"CPU": 4.0}, {"CPU": 4.0}]
TWO_WORKERS = Placement(num_workers=2, cpus=4, use_gpu=False)
NO_PLACES = ControllerError(WorkerGroupStartupTimeoutError(2))


class Controller:
    """Goes through states as Ray's controller does, on a clock of its own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        nodes: Sequence[Any] = TWO_NODES,
        placement: Placement = TWO_WORKERS,
    ) -> None:
        self._callback = EndOnLongOutage(placement, 360.0, lambda: nodes)
        self._state: Any = InitializingState()
        self._now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self._now)

    def enter(self, state: Any, seconds: float = 0.0) -> None:
        self._now += seconds
        before, self._state = self._state, state
        self._callback.after_controller_state_update(before, state)

    def ask(self, seconds: float, error: ControllerError = NO_PLACES) -> None:
        """For places, twelve seconds each time, for so long in vain."""
        for _ in range(round(seconds / 12)):
            self.enter(SchedulingState(ResizeDecision(2, {"CPU": 4})))
            self.enter(ReschedulingState(error), 12)

    def run(self) -> None:
        self.enter(SchedulingState(ResizeDecision(2, {"CPU": 4})))
        self.enter(RunningState(), 1)
        self.enter(RunningState(), 3600)


def test_outages_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    for _ in range(5):
        controller.ask(348)
        controller.run()
        controller.enter(RestartingState(NO_PLACES))
    with pytest.raises(UserError, match=r"other jobs use the resources .* wait for them"):
        controller.ask(372)


def test_a_lost_node_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, TWO_NODES[:1])
    with pytest.raises(UserError) as caught:
        controller.ask(372)
    assert str(caught.value) == (
        "the training run (workers: 2, each with 4 CPUs) no longer fits the cluster, which has "
        "room for 1 on 1 node (4 CPUs with 0 GPUs): a node was lost and not replaced within "
        "360 s; add one, or set runtime.training_workers to a range such as [1, 2], and run "
        "again: it resumes from its last checkpoint"
    )


def test_a_range_waits_for_a_node_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(num_workers=(1, 2), cpus=4, use_gpu=False)
    controller = Controller(monkeypatch, [], placement)
    for _ in range(3):  # places that a lost node still seems to have, then none at all
        controller.ask(120)
        controller.enter(ReschedulingState(NO_PLACES), 3600)
    controller.run()


def test_workers_that_never_start_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    failed = ControllerError(WorkerGroupStartupFailedError("no such module: torch"))
    with pytest.raises(UserError, match="no such module: torch; look at the logs"):
        controller.ask(372, failed)


def of_workers(*failures: Exception) -> WorkerGroupError:
    return WorkerGroupError("as Ray says it", dict(enumerate(failures)))


def test_a_worker_that_dies_too_often_is_a_sentence_and_others_that_lost_it_are_none() -> None:
    died = of_workers(RuntimeError("Connection closed by peer"), RayActorError())
    with pytest.raises(UserError) as raised:
        raise_sentence(died, "pretraining", 3)
    said = str(raised.value)
    assert said.startswith("a worker of pretraining (rank 1) ended without finishing, and runtime.")
    assert "max_failures=3 allows no more restarts: The actor experienced an error" in said
    assert len(said.splitlines()) == 1
    assert not is_transient(raised.value)


@pytest.mark.parametrize("is_of_the_controller", [True, False])
def test_a_node_without_memory_is_one_line_and_not_sixty(is_of_the_controller: bool) -> None:
    lost = OutOfMemoryError(
        "4 worker(s) were killed due to the node running low on memory.\n"
        + "Object store memory usage: [- objects spillable: 1\n" * 60
    )
    error = ControllerError(lost) if is_of_the_controller else lost
    with pytest.raises(UserError) as raised:
        raise_sentence(error, "pretraining", 3)
    assert str(raised.value) == (
        "Ray lost pretraining: 4 worker(s) were killed due to the node running low on memory; look "
        "at the memory and the logs of its node, and run again: it resumes from its last checkpoint"
    )
    assert not is_transient(raised.value)


def test_a_store_that_stays_away_is_a_sentence_and_worth_another_try() -> None:
    away = of_workers(OSError("the checkpoint of step 8 could not be stored in s3://b/p: 503"))
    with pytest.raises(UserError, match="but the checkpoint of step 8 could not") as raised:
        raise_sentence(away, "pretraining", 3)
    assert is_transient(raised.value)


def test_a_mistake_of_the_program_stays_what_it_is() -> None:
    raise_sentence(of_workers(KeyError("checkpoint_seconds")), "pretraining", 3)


def test_an_error_without_a_message_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"did not start .*MemoryError\(\); look at the logs"):
        Controller(monkeypatch).ask(372, ControllerError(MemoryError()))


def test_a_lack_of_memory_without_a_message_is_one_sentence() -> None:
    gpu = torch.device("cuda")
    sentence = r"^it does not fit the memory of its worker \(OutOfMemoryError\); lower size$"
    with pytest.raises(UserError, match=sentence), within_memory("it", "lower size", gpu, 1):
        raise torch.OutOfMemoryError
