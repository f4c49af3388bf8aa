"""Launching a training run under Ray Train, which replaces workers and resumes from checkpoints."""

import contextvars
import logging
import math
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.cluster import connect, disconnect, is_loss, keep_signal_handlers, nodes, what_to_do
from pipelines.errors import UserError, first_line
from pipelines.settings import RuntimeSettings
from pipelines.stage import Observer, Progress, StageContext, send_note
from pipelines.train.checkpoint import CheckpointFolder, Checkpoints, DamagedCheckpointError
from pipelines.train.controller import EndOnFinalError
from pipelines.train.messages import Messages
from pipelines.train.placement import Placement, listed, place_workers, room_on_nodes
from pipelines.train.settings import least_workers
from pipelines.train.worker import Assignment, TrainingJob, train_on_rank
from pipelines.versions import computing_versions

import ray  # isort: skip  (after pipelines.cluster, which sets its environment)
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train import ControllerError, FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchTrainer
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

# How long a training run may take to end politely: a step, an evaluation, a checkpoint on its way.
STOP_GRACE_SECONDS = 120.0
_OUTAGE_SECONDS = 360.0  # how long, in all, the workers may find no room
_SLICE_SECONDS = 1.0
_RESIZE_SECONDS = 10.0  # between two looks at whether a range of workers has more room
_POLL_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0


@contextmanager
def launched(
    job: TrainingJob, checkpoints: CheckpointFolder, context: StageContext, run_id: str | None
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Train on the workers that `context.runtime` asks for; yields the result.

    That is a local folder with the files of the last checkpoint, and what rank 0 returned. A worker
    or node that dies is replaced, as often as `context.runtime` allows, and training resumes from
    the last checkpoint; so does a second call with the same name in another process. A UserError on
    any rank ends all of them and is raised here. What stops this call from outside, such as
    KeyboardInterrupt, ends the training run too: it saves a checkpoint, within `STOP_GRACE_SECONDS`
    or until it is stopped once more, and this process leaves Ray.
    """
    runtime, section = context.runtime, job.cut.section
    connect()
    placement = place_workers(runtime, nodes(), job.cut, one_thread_each=job.one_thread_each)
    logger.info("%s, %s", job.stage, placement)
    least = least_workers(runtime)
    if room_on_nodes(nodes(), placement.cpus, use_gpu=placement.use_gpu) < least:
        note = (
            f"{section}: waiting up to {_start_seconds(runtime):.0f} s for nodes for {least} "
            f"workers of {placement.cpus} CPU each, there are {listed(nodes())}"
        )
        send_note(context.observe, section, note)
    folder = CheckpointFolder(f"{checkpoints.path}/{job.name}", checkpoints.filesystem)
    # On a busy machine minutes pass before the first step. A stage of its own: its time is not that
    # of steps.
    starting = f"{job.stage}, starting its workers"
    context.observe(Progress(stage=starting, done=0, total=0, unit="steps"))
    try:
        with messages_of_workers(context.observe) as messages, keep_signal_handlers():
            assignment = Assignment(
                job=job,
                checkpoints=folder,
                messages=messages,
                run_id=run_id,
                tracking_uri=context.tracker.uri if context.tracker else None,
                num_threads=placement.cpus,
                versions=computing_versions(),
            )
            result = _fit(_trainer(assignment, placement, checkpoints, context), messages)
    except (ControllerError, WorkerGroupError, RayError) as error:
        raise_user_error(error, section, runtime.max_failures, placement)
        raise
    except BaseException as error:
        # Before a stopped caller releases the lock of its build: in a notebook the process would
        # survive, and with it the thread that trains. A task of Ray's has no Ray of its own.
        is_task = ray.get_runtime_context().get_task_id() is not None
        if not isinstance(error, Exception) and not is_task:
            disconnect()
        raise
    stored = Checkpoints(folder)
    name = result["checkpoint"]
    try:
        last = next((each for each in stored.stored() if each.name == name), None)
        if last is None:
            raise DamagedCheckpointError("it is gone")
        with stored.opened(last) as place:
            yield place, result
    except DamagedCheckpointError as error:
        raise UserError(
            f"the checkpoint {name} is damaged: {error}; run again: training resumes from the "
            "previous one"
        ) from error


def _start_seconds(runtime: RuntimeSettings) -> float:
    """How long workers are waited for; in place of a lost node, too, an autoscaler brings one."""
    return max(_OUTAGE_SECONDS, runtime.wait_for_nodes_seconds)


def _trainer(
    assignment: Assignment,
    placement: Placement,
    checkpoints: CheckpointFolder,
    context: StageContext,
) -> TorchTrainer:
    # Typed as the older API's, which knows none of these.
    scaling: dict[str, Any] = {
        "num_workers": placement.num_workers,
        "elastic_resize_monitor_interval_s": _RESIZE_SECONDS,
    }
    start_seconds = float(os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"])
    failures: dict[str, Any] = {
        "max_failures": context.runtime.max_failures,
        "controller_failure_limit": math.ceil(_start_seconds(context.runtime) / start_seconds),
    }
    callbacks: list[Any] = [EndOnFinalError()]
    # Bound: a `train_loop_config` is opened by Ray's controller, which would import all of this.
    worker: Any = partial(train_on_rank, assignment)
    return TorchTrainer(
        worker,
        scaling_config=ScalingConfig(
            use_gpu=placement.use_gpu,
            resources_per_worker={"CPU": placement.cpus, "GPU": int(placement.use_gpu)},
            **scaling,
        ),
        run_config=RunConfig(
            name=assignment.job.name,
            storage_path=checkpoints.path,
            storage_filesystem=checkpoints.filesystem,
            failure_config=FailureConfig(**failures),
            callbacks=callbacks,
        ),
    )


def raise_user_error(
    error: Exception, section: str, max_failures: int, placement: Placement
) -> None:
    """Raise UserError if a person can fix what Ray Train's `fit` raised; return if it is a bug."""
    cause = error.controller_failure if isinstance(error, ControllerError) else error
    if isinstance(cause, UserError):
        raise cause from None  # not from itself: a cause of its own
    if is_loss(cause):
        raise UserError(
            f"Ray lost {section}: {what_to_do(cause)}: it resumes from its last checkpoint"
        ) from error
    if isinstance(error, ControllerError) and type(cause).__module__.startswith("ray."):
        raise UserError(
            f"{section} found no room for {placement.num_workers} workers of {placement.cpus} CPU "
            f"each on {listed(nodes())} ({first_line(cause)}): a node was lost, other jobs use "
            "what it needs, or an autoscaler adds none; add a node, wait for them, raise "
            "runtime.wait_for_nodes_seconds where an autoscaler is slow, or set "
            "runtime.training_workers to a range such as [1, 2], and run again: it resumes from "
            "its last checkpoint"
        ) from error
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

    # A daemon: Ray's call may wait for ever for a Ray that has ended, and must not hold up the end.
    _start_daemon(fit, "fit")
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
        wait([outcome], timeout=STOP_GRACE_SECONDS)
        raise


@contextmanager
def messages_of_workers(observe: Observer) -> Iterator["ActorHandle[Any]"]:
    """Where workers `send` Progress, which reaches `observe`, and the caller says `stop`.

    It lives on the caller's node, so that the loss of another node does not end it.
    """
    connect()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0)(Messages)
    messages: ActorHandle[Any] = actor.options(scheduling_strategy=here).remote()
    ending = threading.Event()

    def show() -> None:
        is_last_round = False
        while not is_last_round:
            is_last_round = ending.wait(_POLL_SECONDS)
            try:
                waiting: list[Progress] = ray.get(messages.fetch.remote())
            except RayError as error:
                logger.warning("progress is not shown any more: %s", first_line(error))
                return
            for progress in waiting:
                try:
                    observe(progress)
                # Whatever it is: a display may be gone for a moment.
                except Exception as error:  # noqa: BLE001
                    logger.warning("progress cannot be shown: %s", error)

    thread = _start_daemon(show, "progress")
    try:
        yield messages
    finally:
        ending.set()
        thread.join(_LAST_WORDS_SECONDS)
        if ray.is_initialized():  # else it has ended with Ray
            ray.kill(messages)


def _start_daemon(function: Any, name: str) -> threading.Thread:
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(function,), name=name, daemon=True)
    thread.start()
    return thread
