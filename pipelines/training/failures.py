"""Which errors of a worker end a training run, which only replace the worker, and as what."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from pipelines.cluster.connection import nodes
from pipelines.cluster.mapping import is_loss, what_to_do
from pipelines.config.errors import UserError
from pipelines.training.placement import Node, Placement, listed, room_on_nodes

from ray.exceptions import RayActorError  # isort: skip  (after its environment)
from ray.train import ControllerError, UserCallback, WorkerGroupError  # isort: skip

# Ray has no public names for these.
from ray.train.v2._internal.exceptions import (
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.state import ReschedulingState, SchedulingState

_DEATHS = (RayActorError, WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError)


def raise_sentence(error: Exception, section: str, max_failures: int) -> None:
    """Raise UserError if a person can fix what ended a training run after all its restarts.

    `error` is what Ray Train's `fit` raised, `section` is the recipe's. Returns if it is a bug,
    which needs its traceback.
    """
    cause = error.controller_failure if isinstance(error, ControllerError) else error
    if isinstance(cause, UserError):
        raise cause from None  # not from itself: a cause of its own
    if is_loss(cause):
        raise UserError(
            f"Ray lost {section}: {what_to_do(cause)}: it resumes from its last checkpoint"
        ) from error
    if not isinstance(error, WorkerGroupError):
        return
    for rank, failure in sorted(error.worker_failures.items()):
        if isinstance(failure, OSError):
            # Caused by it: a task is tried again where waiting may mend it.
            raise UserError(f"{section} needs its store and its disks, but {failure}") from failure
        if isinstance(failure, _DEATHS):
            raise UserError(
                f"a worker of {section} (rank {rank}) ended without finishing, and "
                f"runtime.max_failures={max_failures} allows no more restarts: "
                f"{what_to_do(failure)}: it resumes from its last checkpoint"
            ) from error


class EndOnFinalError(UserCallback):
    """Ends all ranks as soon as one of them raised UserError, which would come again.

    Ray Train calls this in its controller and ends the training run when it raises, even while
    other ranks wait for the failed one.
    """

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Raise the first UserError among the errors of the ranks, if there is one."""
        for _, error in sorted(worker_exceptions.items()):
            if isinstance(error, UserError):
                raise error


class EndOnLongOutage(ControllerCallback):
    """Ends a training run whose workers found no places for too long; each outage counts alone.

    Ray counts failures over the whole run: a month of short outages would end one. It calls this
    in its controller. A range of workers that waits for nodes to join is no outage.
    """

    def __init__(
        self,
        placement: Placement,
        seconds: float,
        nodes: Callable[[], Sequence[Node]] = nodes,
    ) -> None:
        self._placement = placement
        self._seconds = seconds
        self._nodes = nodes
        self._since: float | None = None

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Note when places are asked for in vain; raise UserError after too long a time."""
        now = time.monotonic()
        if isinstance(current_state, SchedulingState):
            self._since = now if self._since is None else self._since
        elif isinstance(current_state, ReschedulingState) and isinstance(
            previous_state, SchedulingState
        ):
            if self._since is not None and now - self._since > self._seconds:
                raise UserError(self._why(current_state.training_failed_error))
        else:
            self._since = None

    def _why(self, error: Any) -> str:
        cause = getattr(error, "controller_failure", error)
        if not isinstance(cause, WorkerGroupStartupTimeoutError):
            return (
                f"the workers of the training run ({self._placement}) did not start for "
                f"{self._seconds:.0f} s: "
                f"{(str(cause).strip() or repr(cause)).splitlines()[-1]}; "
                "look at the logs of the nodes"
            )
        wanted, placement = self._placement.num_workers, self._placement
        least = wanted[0] if isinstance(wanted, tuple) else wanted
        up = self._nodes()
        room = room_on_nodes(up, placement.cpus, use_gpu=placement.use_gpu)
        if room < least:
            return (
                f"the training run ({placement}) no longer fits the cluster, which has room for "
                f"{room} on {listed(up)}: a node was lost and not replaced within "
                f"{self._seconds:.0f} s; add one, or set runtime.training_workers to a range such "
                f"as [1, {least}], and run again: it resumes from its last checkpoint"
            )
        return (
            f"other jobs use the resources that the training run ({placement}) needs; wait for "
            "them, or lower runtime.training_workers or runtime.cpus_per_worker"
        )
