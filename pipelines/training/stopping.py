"""A polite stop: the process that started a training asks its ranks to save and to end.

The wish lies in an actor on the caller's node. Rank 0 looks for it from a thread of its own; from
there it travels with a step's counts, so that all ranks end after the same step.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipelines.core.cluster.connection import connect

import ray  # isort: skip  (after pipelines.core.cluster.connection, which sets its environment)
from ray.actor import ActorHandle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

# How long a training may take to end politely: a step, an evaluation, a checkpoint on its way.
PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.5


class _Wish:
    """Whether the training is to stop."""

    def __init__(self) -> None:
        self._is_said = False

    def say(self) -> None:
        self._is_said = True

    def is_said(self) -> bool:
        return self._is_said


@contextmanager
def stop_wish() -> Iterator["ActorHandle[Any]"]:
    """Where the caller can `say` that the training is to stop."""
    connect()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0)(_Wish)
    wish: ActorHandle[Any] = actor.options(scheduling_strategy=here).remote()
    try:
        yield wish
    finally:
        if ray.is_initialized():  # else it has ended with Ray
            ray.kill(wish)


@contextmanager
def listening(wish: "ActorHandle[Any] | None") -> Iterator[Callable[[], bool]]:
    """Whether `wish` was said, as far as a thread has heard; the answer comes at once."""
    if wish is None:
        yield lambda: False
        return
    said, ending = threading.Event(), threading.Event()

    def listen() -> None:
        try:
            while not said.is_set() and not ending.wait(_POLL_SECONDS):
                if ray.get(wish.is_said.remote()):
                    said.set()
        except RayError as error:  # its node has ended, and soon this process will
            logger.warning("nobody can ask for a stop any more: %s", str(error).partition("\n")[0])

    threading.Thread(target=listen, name="stop wish", daemon=True).start()
    try:
        yield said.is_set
    finally:
        ending.set()
