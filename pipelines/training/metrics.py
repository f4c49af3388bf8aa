"""A training run's figures on their way to MLflow, from a thread of their own.

A training step never waits for the tracker. The whole curve is kept, here and in each checkpoint,
and MLflow is sent the points that it lacks, each once. Other figures, of speed, memory and the
machine, are lost if the tracker does not take them at once.

What an unreachable tracker lacks when training ends is kept in the store. Any later run with the
same store and tracker delivers it, on any machine.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.access import names_in, store_errors_explained
from pipelines.config.errors import first_line
from pipelines.tracking.tracker import Tracker, now_ms
from pipelines.tracking.transient import is_transient, tracker_errors

from mlflow import MlflowClient  # isort: skip  (after pipelines.tracking: its time limits)
from mlflow.entities import Metric  # isort: skip
from mlflow.exceptions import MlflowException  # isort: skip

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
        """Send what is missing within `seconds`, if the tracker takes it."""
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
                client = client or MlflowClient(tracking_uri=self._uri)
                while points := self._curve[self._num_sent : self._num_sent + _POINTS_A_CALL]:
                    self._send(client, points)
                    self._num_sent += len(points)
                for first in range(0, len(beside), _POINTS_A_CALL):
                    self._send(client, beside[first : first + _POINTS_A_CALL])
                self._is_away = False
            # Any error: without this thread nothing would ever be sent.
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


_PATIENCE_SECONDS = 120.0  # with a tracker that answers, before a run begins
_KEPT_SECONDS = 30 * 24 * 3600.0  # an end whose run the tracker does not have
_FOLDER = ".undelivered"  # no kind of artifact has such a name


class Ending(BaseModel):
    """How a training run ended: the points that the tracker lacks, and its final figures."""

    model_config = ConfigDict(frozen=True)

    uri: str  # of the tracker; it lies in the store: no secrets
    run_id: str
    points: tuple[Point, ...]
    figures: Mapping[str, float]
    computed_on: Mapping[str, str]
    end_time: int  # milliseconds

    def deliver(self, tracker: Tracker, seconds: float = 10.0) -> bool:
        """Send it; False if the tracker did not take all of it within `seconds`.

        Sent again, every point is still one point.
        """
        if not tracker.answers():
            return False
        if self.points:
            log = MetricLog(tracker.uri, self.run_id)
            log.restore(self.points)
            log.close(seconds)
            if log.missing():
                return False
        return tracker.finish(
            self.run_id, self.figures, computed_on=self.computed_on, end_time=self.end_time
        )

    def keep(self, store: ArtifactStore) -> None:
        """Leave it in `store` for a later run."""
        with store_errors_explained(store.url):
            store.filesystem.makedirs(f"{store.root}/{_FOLDER}", exist_ok=True)
            path = f"{store.root}/{_FOLDER}/{self.run_id}.json"
            store.filesystem.pipe_file(path, self.model_dump_json().encode())
        logger.warning(
            "the tracker does not answer: %s points and the end of the run %s wait in the store, "
            "and the next run with this store and tracker delivers them",
            len(self.points), self.run_id,
        )  # fmt: skip


def deliver_kept(store: ArtifactStore, tracker: Tracker) -> list[str]:
    """Deliver what earlier training runs left in `store` for `tracker`; a sentence for each.

    Asks no tracker where nothing is left. What it does not take stays for the next time.
    """
    sentences: list[str] = []
    for path, ending in _kept(store):
        if ending.uri != tracker.shown_uri:
            continue
        run = f"the run {ending.run_id}"
        try:
            stage = lifecycle_stage(tracker, ending.run_id)
            is_recent = time.time() - ending.end_time / 1000 < _KEPT_SECONDS
            if not stage and is_recent:  # perhaps of another machine's tracker at the same address
                continue
            if stage != "active":
                sentences.append(f"{run} is gone from the tracker, and so is its end")
            elif ending.deliver(tracker, _PATIENCE_SECONDS):
                sentences.append(
                    f"delivered {len(ending.points)} points and the end of {run}, for which the "
                    "tracker was away"
                )
            else:
                logger.warning("the tracker is slow: the end of %s waits for the next run", run)
                continue
        except tracker_errors() as error:
            logger.warning("%s waits for its end: %s", run, error)
            if is_transient(error):
                break  # the others would wait as long for an answer
            continue
        # Another run may have delivered it at the same time: each point is one point all the same.
        with store_errors_explained(store.url), suppress(FileNotFoundError):
            store.filesystem.rm_file(path)
    return sentences


def lifecycle_stage(tracker: Tracker, run_id: str) -> str:
    """`active`, or `deleted`: such a run takes no points; empty if the tracker has no such run."""
    try:
        run = tracker.client().get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return ""
    return str(run.info.lifecycle_stage)


def _kept(store: ArtifactStore) -> list[tuple[str, Ending]]:
    found: list[tuple[str, Ending]] = []
    folder = f"{store.root}/{_FOLDER}"
    with store_errors_explained(store.url):
        for path in (f"{folder}/{name}" for name in names_in(store.filesystem, folder)):
            try:
                text = store.filesystem.cat_file(path)
                found.append((path, Ending.model_validate_json(text)))
            except FileNotFoundError:  # another run has delivered it at this moment
                continue
            except ValidationError:  # a power cut, or a disk that was full
                logger.warning("%s is unreadable and stays where it is", path)
    return found
