"""The points of a training's curves on their way to MLflow, from a thread of their own.

A training step never waits for the tracker. What a tracker that does not answer has not taken
waits here and is part of each checkpoint, so that it arrives later; every point arrives once.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

# Before MLflow itself: it sets the time limits that MLflow reads when it is imported.
from pipelines.core.tracking.tracker import server_address  # isort: skip
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

logger = logging.getLogger(__name__)

_POINTS_A_CALL = 1000  # MLflow's own limit of one batch
_MOST_POINTS = 400_000  # that wait at once: some forty megabytes
_LAST_WORDS_SECONDS = 10.0


class Point(NamedTuple):
    """One figure at one step. Sent again, the same point is still one point to MLflow."""

    key: str
    value: float
    timestamp: int  # milliseconds
    step: int


class MetricLog:
    """Sends the points of a run in the order of their steps, each once.

    A resumed run computes again the steps after its last checkpoint, with the same numbers: of
    every figure only what lies beyond the last step that the tracker held before is sent.
    """

    def __init__(self, uri: str, run_id: str, *, flush_seconds: float = 5.0) -> None:
        self._uri = uri
        self._run_id = run_id
        self._flush_seconds = flush_seconds
        self._waiting: deque[Point] = deque()
        self._last_step: dict[str, int] = {}  # of each figure, that earlier logs of the run sent
        self._changed = threading.Condition()
        self._is_closing = self._is_away = self._is_full = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Record `figures` at optimizer step `step`; they leave within a few seconds."""
        now = int(time.time() * 1000)
        self.restore(Point(key, value, now, step) for key, value in figures.items())

    def restore(self, points: Iterable[Point]) -> None:
        """Record points that an earlier log of the run could not send."""
        with self._changed:
            for point in points:
                if len(self._waiting) < _MOST_POINTS:
                    self._waiting.append(point)
                elif not self._is_full:
                    self._is_full = True
                    logger.warning("%s points wait for the tracker, later ones stay in the "
                                   "training's own curve alone", len(self._waiting))  # fmt: skip

    def waiting(self) -> list[Point]:
        """The points that the tracker has not confirmed."""
        with self._changed:
            return list(self._waiting)

    def close(self, seconds: float = _LAST_WORDS_SECONDS) -> None:
        """Send what waits, as far as the tracker takes it within `seconds`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        client = MlflowClient(tracking_uri=server_address(self._uri))
        is_last_round = False
        while not is_last_round:
            with self._changed:
                is_last_round = self._changed.wait_for(
                    lambda: self._is_closing, self._flush_seconds
                )
            try:
                self._send(client)
                self._is_away = False
            except MlflowException as error:
                if not self._is_away:
                    self._is_away = True
                    logger.warning("metrics wait, the tracker does not answer: %s", error)

    def _send(self, client: MlflowClient) -> None:
        """Send everything that waits; points leave the queue once the tracker has taken them."""
        while self._waiting:
            with self._changed:
                points = list(islice(self._waiting, _POINTS_A_CALL))
            new = [point for point in points if point.step > self._last_on(client, point.key)]
            if new:
                client.log_batch(self._run_id, [Metric(*point) for point in new])
            with self._changed:
                for _ in points:
                    self._waiting.popleft()

    def _last_on(self, client: MlflowClient, key: str) -> int:
        if key not in self._last_step:
            history = client.get_metric_history(self._run_id, key)
            self._last_step[key] = max((point.step for point in history), default=-1)
        return self._last_step[key]
