"""Progress from the workers to the process that started them, where somebody watches.

Workers cannot reach the run logger of that process: they put values into a queue, and a thread
there hands them on. A line of progress is never worth a wait or an error of a training step.
"""

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.core.cluster.connection import connect
from pipelines.core.stage import Progress, StageContext

import ray  # isort: skip  (after pipelines.core.cluster.connection, which sets its environment)
from ray.exceptions import RayError
from ray.util.queue import Empty, Full, Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

_QUEUE_SIZE = 1000
_POLL_SECONDS = 1.0  # how long a call waits in the queue for the next value
_LAST_WORDS_SECONDS = 2.0


@contextmanager
def progress_from_workers(context: StageContext) -> Iterator[Queue]:
    """A queue whose Progress items reach `context.observe`, in the caller's own context.

    It lives on the caller's node: no other node's end takes it away.
    """
    connect()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    queue = Queue(_QUEUE_SIZE, actor_options={"num_cpus": 0, "scheduling_strategy": here})
    stopping = threading.Event()

    is_shown = True

    def show(progress: Progress) -> None:
        nonlocal is_shown
        try:
            context.observe(progress)
        # Whatever it is: a display that is gone for a moment is no reason to show nothing more.
        except Exception as error:  # noqa: BLE001
            if is_shown:
                is_shown = False
                logger.warning("progress cannot be shown: %s", error)

    def hand_on() -> None:
        try:
            while not stopping.is_set():
                if (progress := _next(queue)) is not None:
                    show(progress)
            for progress in queue.get_nowait_batch(queue.qsize()):
                show(progress)
        except RayError as error:
            logger.warning("progress is not shown any more: %s", _first_line(error))

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(hand_on,), name="progress", daemon=True
    )
    thread.start()
    try:
        yield queue
    finally:
        stopping.set()
        thread.join(_POLL_SECONDS + _LAST_WORDS_SECONDS)
        queue.shutdown(force=True)


def _next(queue: Queue) -> Progress | None:
    try:
        progress: Progress = queue.get(timeout=_POLL_SECONDS)
    except Empty:
        return None
    return progress


class ProgressSender:
    """A worker's end of the queue: what it is given is sent from a thread of its own.

    Of values that come faster than they go the newest is sent; those with a note all are.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: deque[Progress] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def send(self, progress: Progress) -> None:
        """Take note of `progress`; it leaves as soon as the one before has left."""
        with self._changed:
            if self._waiting and not self._waiting[-1].note:
                self._waiting.pop()
            self._waiting.append(progress)
            self._changed.notify()

    def close(self) -> None:
        """Send what waits, but do not wait long for it."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(_LAST_WORDS_SECONDS)

    def _run(self) -> None:
        while (progress := self._take()) is not None:
            try:
                self._queue.put_nowait(progress)
            except Full:  # nobody watches just now
                continue
            except RayError as error:
                logger.warning("progress is not sent any more: %s", _first_line(error))
                return

    def _take(self) -> Progress | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return self._waiting.popleft() if self._waiting else None


def _first_line(error: RayError) -> str:
    return str(error).partition("\n")[0]
