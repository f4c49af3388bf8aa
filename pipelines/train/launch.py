"""Launching a training run under Ray Train, which replaces workers and resumes from checkpoints."""

import contextvars
import logging
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipelines.cluster import (
    check_nodes,
    connect,
    disconnect,
    is_driver,
    is_loss,
    keep_signal_handlers,
    nodes,
    what_to_do,
)
from pipelines.errors import UserError
from pipelines.stage import StageContext
from pipelines.tracking.address import database_file
from pipelines.train.arithmetic import wait_for_room
from pipelines.train.checkpoints import CheckpointFolder, Checkpoints, DamagedCheckpointError
from pipelines.train.job import TrainingJob
from pipelines.train.messages import messages_of_workers
from pipelines.train.placement import (
    Placement,
    check_ranks,
    listed,
    room_on_nodes,
    schedule,
)
from pipelines.train.worker import Assignment, train_on_rank

from ray.train import (  # isort: skip  (after pipelines.cluster, which sets its environment)
    ControllerError,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
    WorkerGroupError,
)
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train.torch import TorchTrainer

logger = logging.getLogger(__name__)

# How long a training run may take to end politely: a step, an evaluation, a checkpoint on its way.
PATIENCE_SECONDS = 120.0
_OUTAGE_SECONDS = 360.0  # how long, in all, the workers may find no room
_SLICE_SECONDS = 1.0
_RESIZE_SECONDS = 10.0  # between two looks at whether a range of workers has more room


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


@contextmanager
def launched(
    job: TrainingJob, checkpoints: CheckpointFolder, context: StageContext, run_id: str | None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Train on the workers that `context.runtime` asks for; yields the result.

    That is a local folder with the files of the last checkpoint, and what rank 0 returned. A worker
    or node that dies is replaced, as often as `context.runtime` allows, and training resumes from
    the last checkpoint; so does a second call with the same name in another process. A UserError on
    any rank ends all of them and is raised here. What stops this call from outside, such as
    KeyboardInterrupt, ends the training run too: it saves a checkpoint, within `PATIENCE_SECONDS`
    or until it is stopped once more, and this process leaves Ray.
    """
    runtime, section = context.runtime, job.cut.section
    check_ranks(runtime, job.cut)  # before nodes come for them
    connect()
    waited_seconds = wait_for_room(runtime, context.observe, section)
    check_nodes(context.store, database_file(context.tracker.uri) if context.tracker else None)
    placement = schedule(
        runtime, nodes(), job.cut,
        one_thread_each=job.one_thread_each, waited_seconds=waited_seconds,
    )  # fmt: skip
    logger.info("%s, %s", job.stage, placement)
    folder = checkpoints.below(job.name)
    with (
        _ended_if_stopped(),
        messages_of_workers(context.observe) as messages,
        keep_signal_handlers(),
    ):
        assignment = Assignment(
            job=job,
            checkpoints=folder,
            is_local_store=context.store.is_local,
            messages=messages,
            run_id=run_id,
            tracking_uri=context.tracker.uri if context.tracker else None,
            num_threads=placement.cpus,
            checkpointed_layers=runtime.checkpointed_layers,
        )
        # In the place of a lost node an autoscaler's takes as long to come as the first.
        outage_seconds = max(_OUTAGE_SECONDS, runtime.wait_for_nodes_seconds or 0)
        try:
            result = _fit(
                _trainer(assignment, placement, checkpoints, context, outage_seconds), messages
            )
        except (ControllerError, WorkerGroupError, RayError) as error:
            raise_sentence(error, section, runtime.max_failures, placement)
            raise
    store = Checkpoints(folder)
    named = next((each for each in store.stored() if each.name == result["checkpoint"]), None)
    try:
        if named is None:
            raise DamagedCheckpointError("it is gone")
        with store.opened(named) as place:
            yield place, result
    except DamagedCheckpointError as error:
        raise UserError(
            f"the checkpoint {result['checkpoint']} is damaged: {error}; run again: training "
            "resumes from the previous one"
        ) from error


def _trainer(
    assignment: Assignment,
    placement: Placement,
    checkpoints: CheckpointFolder,
    context: StageContext,
    outage_seconds: float,
) -> TorchTrainer:
    # Typed as the older API's, which knows none of these.
    num_workers: Any = placement.num_workers
    worker: Any = train_on_rank
    resizing: dict[str, Any] = {"elastic_resize_monitor_interval_s": _RESIZE_SECONDS}
    start_seconds = float(os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"])
    failures: dict[str, Any] = {
        "max_failures": context.runtime.max_failures,
        "controller_failure_limit": math.ceil(outage_seconds / start_seconds),
    }
    callbacks: list[Any] = [EndOnFinalError()]
    scaling: Any = ScalingConfig(
        num_workers=num_workers,
        use_gpu=placement.use_gpu,
        resources_per_worker={"CPU": placement.cpus, "GPU": int(placement.use_gpu)},
        **resizing,
    )
    return TorchTrainer(
        worker,
        train_loop_config={"assignment": assignment},
        scaling_config=scaling,
        run_config=RunConfig(
            name=assignment.job.name,
            storage_path=checkpoints.path,
            storage_filesystem=checkpoints.filesystem,
            failure_config=FailureConfig(**failures),
            callbacks=callbacks,
        ),
    )


def raise_sentence(error: Exception, section: str, max_failures: int, placement: Placement) -> None:
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
    if isinstance(error, ControllerError) and type(cause).__module__.startswith("ray."):
        raise UserError(_no_start(placement, cause)) from error
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    for rank, failure in sorted(failures.items()):
        if isinstance(failure, OSError):
            # Caused by it: a task is tried again where waiting may mend it.
            raise UserError(f"{section} needs its store and its disks, but {failure}") from failure
        if type(failure).__module__.startswith("ray."):  # not what our own code raised
            raise UserError(
                f"a worker of {section} (rank {rank}) ended without finishing, and "
                f"runtime.max_failures={max_failures} allows no more restarts: "
                f"{what_to_do(failure)}: it resumes from its last checkpoint"
            ) from error


def _no_start(placement: Placement, cause: Exception) -> str:
    """Why the workers were not started again and again."""
    count = placement.num_workers
    least = count[0] if isinstance(count, tuple) else count
    up = nodes()
    room = room_on_nodes(up, placement.cpus, use_gpu=placement.use_gpu)
    if room < least:
        return (
            f"the training run ({placement}) no longer fits the cluster, which has room for "
            f"{room} on {listed(up)}: a node was lost and not replaced; add one, or set "
            f"runtime.training_workers to a range such as [1, {least}], and run again: it resumes "
            "from its last checkpoint"
        )
    return (
        f"the training run ({placement}) did not start "
        f"({(str(cause).strip() or repr(cause)).splitlines()[0]}): other jobs use the resources "
        "that it needs; wait for them, or lower runtime.training_workers or runtime.cpus_per_worker"
    )


@contextmanager
def _ended_if_stopped() -> Iterator[None]:
    """End the training run before a stopped caller releases the lock of its build.

    In a notebook the process would survive, and with it the thread that trains.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and is_driver():
            disconnect()
        raise


def _fit(trainer: TorchTrainer, messages: "ActorHandle[Any]") -> dict[str, Any]:
    """`trainer.fit()` on a thread of its own: on the main thread it would answer Ctrl-C itself.

    There it exits the process in the middle of a flow. A KeyboardInterrupt, or what a scheduler's
    signal raises, on the waiting main thread first lets the training run save and end.
    """
    outcome: Future[Any] = Future()

    def fit() -> None:
        try:
            outcome.set_result(trainer.fit())
        # Nothing is swallowed: the caller raises it. SystemExit too, or the caller waited for ever.
        except BaseException as error:  # noqa: BLE001
            outcome.set_exception(error)

    run = contextvars.copy_context().run
    # A daemon: Ray's call may wait for ever for a Ray that has ended, and must not hold up the end.
    threading.Thread(target=run, args=(fit,), name="fit", daemon=True).start()
    try:
        # In slices: Ray interrupts a task that it cancels without a signal that would wake it.
        while not wait([outcome], timeout=_SLICE_SECONDS).done:
            pass
        result: dict[str, Any] = outcome.result().return_value
        return result
    except BaseException as stop:
        if outcome.done() or isinstance(stop, Exception):
            raise
        logger.warning(
            "stopping: saving a checkpoint of this training run; stop again to exit at once"
        )
        messages.stop.remote()
        wait([outcome], timeout=PATIENCE_SECONDS)
        raise
