"""Launching a training run under Ray Train, which replaces workers and resumes from checkpoints."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pipelines.cluster.connection import (
    connect,
    disconnect,
    is_driver,
    keep_signal_handlers,
    nodes,
)
from pipelines.cluster.node_checks import check_nodes
from pipelines.stage import StageContext, send_note
from pipelines.tracking.address import database_file
from pipelines.training.arithmetic import wait_for_room
from pipelines.training.checkpoint_files import CheckpointFolder
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.failures import (
    EndOnFinalError,
    EndOnLongOutage,
    raise_sentence,
)
from pipelines.training.messages import PATIENCE_SECONDS, messages_of_workers
from pipelines.training.placement import BatchSplit, check_ranks, cut_short, schedule

from ray.train import (  # isort: skip  (after pipelines.cluster.connection, which sets its environment)
    ControllerError,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.train.torch import TorchTrainer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_OUTAGE_SECONDS = 360.0  # how long, each time, the workers may find no room
_SLICE_SECONDS = 1.0
_RESIZE_SECONDS = 10.0  # between two looks at whether a range of workers has more room


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One training run: the function of its workers, its values and its name."""

    worker: Callable[[dict[str, Any]], dict[str, Any]]
    values: dict[str, Any]  # plain values and artifacts; pickled to every worker
    name: str  # of its checkpoints: a run of the same name resumes from them
    checkpoints: CheckpointFolder
    cut: BatchSplit  # what the workers share
    one_thread_each: bool = False  # whether a CPU trains this model fastest with a rank a core


def launch(
    job: Launch, context: StageContext, finish: Callable[[Path, dict[str, Any]], Result]
) -> Result:
    """Train on the workers that `context.runtime` asks for; returns the result of `finish`.

    `finish` gets a local folder with the files of the last checkpoint, and what rank 0's worker
    returned. A worker or node that dies is replaced, as often as `context.runtime` allows, and
    training resumes from the last checkpoint; so does a second call with the same name in another
    process. A UserError on any rank ends all of them and is raised here. What stops this call from
    outside, such as KeyboardInterrupt, ends the training run too: it saves a checkpoint, within
    `PATIENCE_SECONDS` or until it is stopped once more, and this process leaves Ray.
    """
    check_ranks(context.runtime, job.cut)  # before nodes come for them
    connect()
    waited_seconds = wait_for_room(context.runtime, context.observe, job.cut.section)
    check_nodes(context.store, database_file(context.tracker.uri) if context.tracker else None)
    placement = schedule(
        context.runtime, nodes(), job.cut,
        one_thread_each=job.one_thread_each, waited_seconds=waited_seconds,
    )  # fmt: skip
    logger.info("%s, %s", job.name, placement)
    if note := cut_short(context.runtime, job.cut):
        send_note(context.observe, job.cut.section, f"{job.cut.section}: {note}")
    kept = f"{job.checkpoints.path}/{job.name}", job.checkpoints.filesystem
    with (
        _ended_if_stopped(),
        messages_of_workers(context) as messages,
        keep_signal_handlers(),
    ):
        # Typed as the older API's, which knows none of these.
        num_workers: Any = placement.num_workers
        resizing: dict[str, Any] = {"elastic_resize_monitor_interval_s": _RESIZE_SECONDS}
        scaling: Any = ScalingConfig(
            num_workers=num_workers,
            use_gpu=placement.use_gpu,
            resources_per_worker={"CPU": placement.cpus, "GPU": int(placement.use_gpu)},
            **resizing,
        )
        failures: dict[str, Any] = {
            "max_failures": context.runtime.max_failures,
            "controller_failure_limit": -1,  # it would be of the whole run
        }
        # In the place of a lost node an autoscaler's takes as long to come as the first.
        outage_seconds = max(_OUTAGE_SECONDS, context.runtime.wait_for_nodes_seconds or 0)
        callbacks: list[Any] = [EndOnFinalError(), EndOnLongOutage(placement, outage_seconds)]
        worker: Any = job.worker
        values = {
            **job.values,
            "messages": messages,
            "checkpoints": kept,
            "checkpoint_folder": job.checkpoints.path if context.store.is_local else None,
            "num_threads": placement.cpus,
            "shard_optimizer_state": context.runtime.shard_optimizer_state,
            "checkpointed_layers": context.runtime.checkpointed_layers,
        }
        trainer = TorchTrainer(
            worker,
            train_loop_config=values,
            scaling_config=scaling,
            run_config=RunConfig(
                name=job.name,
                storage_path=job.checkpoints.path,
                storage_filesystem=job.checkpoints.filesystem,
                failure_config=FailureConfig(**failures),
                callbacks=callbacks,
            ),
        )
        try:
            result = _fit(trainer, messages).return_value
        except (ControllerError, WorkerGroupError, RayError) as error:
            raise_sentence(error, job.cut.section, context.runtime.max_failures)
            raise
    with Checkpoints(*kept).named(result["checkpoint"]) as folder:
        return finish(folder, result)


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


def _fit(trainer: TorchTrainer, messages: "ActorHandle[Any]") -> Any:
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
        return outcome.result()
    except BaseException as stop:
        if outcome.done() or isinstance(stop, Exception):
            raise
        logger.warning(
            "stopping: saving a checkpoint of this training run; stop again to exit at once"
        )
        messages.stop.remote()
        wait([outcome], timeout=PATIENCE_SECONDS)
        raise
