"""The points of a training's curves on their way to MLflow, from a thread of their own.

A training step never waits for the tracker. What a tracker that does not answer has not taken
waits here and is part of each checkpoint, so that it arrives later; every point arrives once.
What is told beside the curve is bounded: of a tracker that is away for days the oldest is dropped.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Before MLflow itself: it sets the time limits that MLflow reads when it is imported.
from pipelines.core.tracking.tracker import server_address  # isort: skip
from mlflow import MlflowClient
from mlflow.entities import Metric

logger = logging.getLogger(__name__)

_POINTS_A_CALL = 1000  # MLflow's own limit of one batch
_CURVE = ("train/", "eval/")  # names of what the training keeps itself, too: all of it waits
_MOST_BESIDE = 400_000  # of the others that wait at once: some forty megabytes
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
        self._curve: deque[Point] = deque()
        self._beside: deque[Point] = deque()
        self._leaving: list[Point] = []  # on their way, not yet confirmed
        self._news: list[str] = []
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
                (self._curve if point.key.startswith(_CURVE) else self._beside).append(point)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Keep what is told beside the curve within its bound."""
        if len(self._beside) <= _MOST_BESIDE:
            return
        while len(self._beside) > _MOST_BESIDE:
            self._beside.popleft()
        if not self._is_full:
            self._is_full = True
            self._tell(
                f"{_MOST_BESIDE:,} points beside the curve wait for the tracker: of speed/, "
                "memory/ and system/ the oldest are dropped, of train/ and eval/ none"
            )

    def _tell(self, sentence: str) -> None:
        logger.warning(sentence)
        self._news.append(sentence)

    def news(self) -> list[str]:
        """Sentences that a person should read, each once."""
        with self._changed:
            news, self._news = self._news, []
            return news

    def waiting(self) -> list[Point]:
        """The points that the tracker has not confirmed."""
        with self._changed:
            return [*self._leaving, *self._curve, *self._beside]

    def close(self, seconds: float = _LAST_WORDS_SECONDS) -> None:
        """Send what waits, as far as the tracker takes it within `seconds`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        client: MlflowClient | None = None
        is_last_round = False
        while not is_last_round:
            with self._changed:
                is_last_round = self._changed.wait_for(
                    lambda: self._is_closing, self._flush_seconds
                )
            try:
                # A database is opened here, which may fail and be there later.
                client = client or MlflowClient(tracking_uri=server_address(self._uri))
                self._send(client)
                self._is_away = False
            # Whatever it is: without this thread nothing would ever leave.
            except Exception as error:  # noqa: BLE001
                if not self._is_away:
                    self._is_away = True
                    with self._changed:
                        said = (str(error).splitlines() or [type(error).__name__])[0]
                        self._tell(f"metrics wait, the tracker does not answer: {said}")

    def _send(self, client: MlflowClient) -> None:
        """Send everything that waits; points leave the queue once the tracker has taken them."""
        while queue := self._curve or self._beside:
            with self._changed:
                points = [queue.popleft() for _ in range(min(_POINTS_A_CALL, len(queue)))]
                self._leaving = points
            try:
                new = [point for point in points if point.step > self._last_on(client, point.key)]
                if new:
                    client.log_batch(self._run_id, [Metric(*point) for point in new])
            except BaseException:
                with self._changed:
                    queue.extendleft(reversed(points))
                    self._leaving = []
                raise
            with self._changed:
                self._leaving = []

    def _last_on(self, client: MlflowClient, key: str) -> int:
        if key not in self._last_step:
            history = client.get_metric_history(self._run_id, key)
            self._last_step[key] = max((point.step for point in history), default=-1)
        return self._last_step[key]
