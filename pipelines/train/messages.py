"""Messages between the workers of a training run and the process that started them.

Neither can call the other, so both call an actor on the node of that process. Workers send their
progress; rank 0 asks for the wish to stop and passes it on with a step's counts, so that all ranks
save and end after the same step.
"""

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.cluster import connect
from pipelines.errors import first_line
from pipelines.stage import Observer, Progress

import ray  # isort: skip  (after pipelines.cluster, which sets its environment)
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

_MAX_QUEUED = 1000  # progress that was not fetched yet
_POLL_SECONDS = 0.5
_LAST_WORDS_SECONDS = 2.0


class _Messages:
    """The actor between them."""

    def __init__(self) -> None:
        self._progress: deque[Progress] = deque(maxlen=_MAX_QUEUED)
        self._is_stop_wanted = False

    def send(self, progress: Progress) -> None:
        self._progress.append(progress)

    def fetch(self) -> list[Progress]:
        waiting = list(self._progress)
        self._progress.clear()
        return waiting

    def stop(self) -> None:
        self._is_stop_wanted = True

    def is_stop_wanted(self) -> bool:
        return self._is_stop_wanted


@contextmanager
def messages_of_workers(observe: Observer) -> Iterator["ActorHandle[Any]"]:
    """Where workers `send` Progress, which reaches `observe`, and the caller says `stop`.

    It lives on the caller's node, so that the loss of another node does not end it.
    """
    connect()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0)(_Messages)
    messages: ActorHandle[Any] = actor.options(scheduling_strategy=here).remote()
    ending = threading.Event()

    def show_what_waits() -> None:
        waiting: list[Progress] = ray.get(messages.fetch.remote())
        for progress in waiting:
            try:
                observe(progress)
            # Whatever it is: a display that is gone for a moment is no reason to show nothing more.
            except Exception as error:  # noqa: BLE001
                logger.warning("progress cannot be shown: %s", error)

    def show() -> None:
        try:
            while not ending.wait(_POLL_SECONDS):
                show_what_waits()
            show_what_waits()
        except RayError as error:
            logger.warning("progress is not shown any more: %s", first_line(error))

    thread = threading.Thread(
        target=contextvars.copy_context().run, args=(show,), name="progress", daemon=True
    )
    thread.start()
    try:
        yield messages
    finally:
        ending.set()
        thread.join(_LAST_WORDS_SECONDS)
        if ray.is_initialized():  # else it has ended with Ray
            ray.kill(messages)


class ProgressSender:
    """Sends a worker's Progress without delaying or failing a step."""

    def __init__(self, messages: "ActorHandle[Any]") -> None:
        self._messages = messages
        self._last: Any = None

    def send(self, progress: Progress) -> None:
        """Send `progress` without waiting."""
        self._last = self._messages.send.remote(progress)

    def close(self) -> None:
        """Wait a short time until the last one is sent."""
        if self._last is not None:
            ray.wait([self._last], timeout=_LAST_WORDS_SECONDS)


@contextmanager
def listening_for_stop(messages: "ActorHandle[Any] | None") -> Iterator[Callable[[], bool]]:
    """A function that says at once whether a stop is wanted; a thread asks the actor."""
    if messages is None:
        yield lambda: False
        return
    wish, ending = threading.Event(), threading.Event()

    def listen() -> None:
        try:
            while not wish.is_set() and not ending.wait(_POLL_SECONDS):
                if ray.get(messages.is_stop_wanted.remote()):
                    wish.set()
        except RayError as error:  # its node has ended, and soon this process will
            logger.warning(
                "this training run can no longer be stopped from outside: %s", first_line(error)
            )

    threading.Thread(target=listen, name="stop wish", daemon=True).start()
    try:
        yield wish.is_set
    finally:
        ending.set()
