"""A training run's figures on their way to MLflow, from a thread of their own.

A training step never waits for the tracker. The curve is kept whole, here and in each checkpoint:
MLflow gets what it lacks of it, each point once. Figures beside the curve, of speed, memory and the
machine, are lost where the tracker does not take them at once.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

# Before MLflow itself: it sets the time limits that MLflow reads when it is imported.
from pipelines.tracking.tracker import now_ms, server_address  # isort: skip
from mlflow import MlflowClient
from mlflow.entities import Metric

from pipelines.config.errors import first_line

logger = logging.getLogger(__name__)

_POINTS_A_CALL = 1000  # MLflow's own limit of one batch
_CURVE = ("train/", "eval/")  # names of what the training run keeps itself, too
_LAST_WORDS_SECONDS = 10.0


class Point(NamedTuple):
    """One figure at one step. Sent again, the same point is still one point to MLflow."""

    key: str
    value: float
    timestamp: int  # milliseconds
    step: int


class MetricLog:
    """Sends the points of a run that its tracker lacks, in the order of their steps.

    A resumed run computes again the steps after its last checkpoint, with the same numbers: of
    every figure only what lies beyond the last step that the tracker held before is sent. `warn` is
    called where the tracker goes away.
    """

    def __init__(
        self,
        uri: str,
        run_id: str,
        *,
        flush_seconds: float = 5.0,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._uri = uri
        self._run_id = run_id
        self._flush_seconds = flush_seconds
        self.warn = warn
        self._curve: list[Point] = []
        self._num_sent = 0  # of the curve
        self._beside: list[Point] = []
        self._last_step: dict[str, int] = {}  # of each figure, that earlier logs of the run sent
        self._changed = threading.Condition()
        self._is_closing = self._is_away = False
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def add(self, step: int, figures: Mapping[str, float], timestamp: int | None = None) -> None:
        """Record `figures` at optimizer step `step`; they leave within a few seconds."""
        now = now_ms() if timestamp is None else timestamp
        self.restore(Point(key, value, now, step) for key, value in figures.items())

    def restore(self, points: Iterable[Point]) -> None:
        """Record points that an earlier log of the run may not have sent."""
        with self._changed:
            for point in points:
                (self._curve if point.key.startswith(_CURVE) else self._beside).append(point)

    def missing(self) -> list[Point]:
        """The points of the curve that the tracker has not confirmed."""
        return self._curve[self._num_sent :]

    def close(self, seconds: float = _LAST_WORDS_SECONDS) -> None:
        """Send what is missing, as far as the tracker takes it within `seconds`."""
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
                beside, self._beside = self._beside, []
            try:
                # A database is opened here, which may fail and be there later.
                client = client or MlflowClient(tracking_uri=server_address(self._uri))
                while points := self._curve[self._num_sent : self._num_sent + _POINTS_A_CALL]:
                    self._send(client, points)
                    self._num_sent += len(points)
                for first in range(0, len(beside), _POINTS_A_CALL):
                    self._send(client, beside[first : first + _POINTS_A_CALL])
                self._is_away = False
            # Whatever it is: without this thread nothing would ever leave.
            except Exception as error:  # noqa: BLE001
                if not self._is_away:
                    self._is_away = True
                    sentence = f"metrics wait, the tracker does not answer: {first_line(error)}"
                    logger.warning(sentence)
                    self.warn(sentence)

    def _send(self, client: MlflowClient, points: Sequence[Point]) -> None:
        new = [point for point in points if point.step > self._last_on(client, point.key)]
        if new:
            client.log_batch(self._run_id, [Metric(*point) for point in new])

    def _last_on(self, client: MlflowClient, key: str) -> int:
        if key not in self._last_step:
            history = client.get_metric_history(self._run_id, key)
            self._last_step[key] = max((point.step for point in history), default=-1)
        return self._last_step[key]
