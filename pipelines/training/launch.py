"""Launching a training under Ray Train: it restarts what dies and goes on from a checkpoint."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bert_core.training.loop import NonFiniteGradientError
from pipelines.artifacts.checkpoints import CheckpointFolder
from pipelines.core.cluster import connect, keep_signal_handlers
from pipelines.core.errors import UserError
from pipelines.core.stage import Progress, StageContext

import ray  # isort: skip  (after pipelines.core.cluster, which sets its environment)
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.util.queue import Empty, Queue

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# Worker failures, and failures to place the workers, before the training fails.
_FAILURE_LIMITS: dict[str, Any] = {"max_failures": 3, "controller_failure_limit": 5}
_QUEUE_SIZE = 1000
_DRAIN_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One training: what runs on the workers, with which plain values, and under which name."""

    worker: Callable[[dict[str, Any]], dict[str, Any]]
    values: dict[str, Any]  # plain values and artifacts; pickled to every worker
    name: str  # names the checkpoints: the same name goes on where it stopped
    checkpoints: CheckpointFolder


def launch(
    job: Launch, context: StageContext, finish: Callable[[Path, dict[str, Any]], Result]
) -> Result:
    """Train on `context.training_workers` workers, then return what `finish` makes of it.

    `finish` is given a local folder with the files of the last checkpoint, and what rank 0's
    worker returned. A worker or node that dies is replaced up to three times, each time going on
    from the last checkpoint; so does a second call with the same name, in another process.
    """
    connect()
    num_cpus = _cpus_of_a_worker(context.training_workers)
    with _progress_from_workers(context) as queue, keep_signal_handlers():
        trainer = TorchTrainer(
            _guarded(job.worker),
            train_loop_config={**job.values, "progress": queue, "num_threads": num_cpus},
            scaling_config=ScalingConfig(
                num_workers=context.training_workers,
                use_gpu=_gpus_suffice(context.training_workers),
                resources_per_worker={"CPU": num_cpus},
            ),
            run_config=RunConfig(
                name=job.name,
                storage_path=job.checkpoints.path,
                storage_filesystem=job.checkpoints.filesystem,
                failure_config=FailureConfig(**_FAILURE_LIMITS),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        )
        result: Any = _fit(trainer)  # typed as the older API's
    if "error" in result.return_value:
        raise UserError(result.return_value["error"])
    with result.checkpoint.as_directory() as folder:
        return finish(Path(folder), result.return_value)


def _fit(trainer: TorchTrainer) -> Any:
    """`trainer.fit()` on a thread of its own: on the main thread it would answer Ctrl-C itself.

    There it exits the process in the middle of a flow; a KeyboardInterrupt on the waiting main
    thread lets the flow end in order, and leaving Ray ends the training.
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
    return outcome.result()


def _cpus_of_a_worker(num_workers: int) -> int:
    """Share the cluster's CPUs; Ray would wait for ever for more workers than it can place."""
    total = int(ray.cluster_resources().get("CPU", 0))
    if num_workers > total:
        raise UserError(
            f"the cluster must have a CPU for each training worker, found {total} for "
            f"{num_workers} workers; lower place.training_workers or add nodes"
        )
    smallest_node = min(
        int(node["Resources"].get("CPU", 0))
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
    )
    return max(1, min(total // num_workers, smallest_node))


def _gpus_suffice(num_workers: int) -> bool:
    return ray.cluster_resources().get("GPU", 0) >= num_workers


def _guarded(
    worker: Callable[[dict[str, Any]], dict[str, Any]],
) -> Callable[[dict[str, Any]], Any]:
    """Hand over, instead of raising, what would fail again in the same way.

    Ray Train starts a worker that raised anew. Both kinds of errors come to all ranks alike, so
    that none is left waiting for another.
    """

    def run(values: dict[str, Any]) -> dict[str, Any]:
        try:
            return worker(values)
        except (UserError, NonFiniteGradientError) as error:
            return {"error": str(error)}

    return run


@contextmanager
def _progress_from_workers(context: StageContext) -> Iterator[Queue]:
    """A queue whose Progress items reach `context.observe`, in the caller's own context.

    Workers cannot reach the run logger of the process that started them; a thread here can.
    """
    queue = Queue(_QUEUE_SIZE, actor_options={"num_cpus": 0})
    stopping = threading.Event()

    def drain() -> None:
        while True:
            last_round = stopping.is_set()
            for progress in _take_all(queue):
                context.observe(progress)
            if last_round:
                return
            stopping.wait(_DRAIN_SECONDS)

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(drain,), name="progress", daemon=True
    )
    thread.start()
    try:
        yield queue
    finally:
        stopping.set()
        thread.join()
        queue.shutdown(force=True)


def _take_all(queue: Queue) -> list[Progress]:
    try:
        size = queue.qsize()
        return queue.get_nowait_batch(size) if size else []
    except Empty:
        return []
