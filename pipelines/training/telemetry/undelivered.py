"""What an absent tracker has not taken of a finished training, kept in the store until it has.

Any later run with the same store and tracker delivers it, wherever it runs.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mlflow.exceptions import MlflowException
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.artifacts import ArtifactStore
from pipelines.artifacts.access import store_errors_explained
from pipelines.tracking.tracker import Tracker, is_transient, tracker_errors
from pipelines.training.telemetry.metrics import MetricLog, Point

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS = 120.0  # with a tracker that answers, before a run begins
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
        """Send it; False where the tracker did not take all of it within so many seconds.

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
            if not is_there(tracker, ending.run_id):
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


def is_there(tracker: Tracker, run_id: str) -> bool:
    """Whether the tracker has the run; one that somebody deleted takes no points."""
    try:
        run = tracker.client().get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return False
    return bool(run.info.lifecycle_stage == "active")


def _kept(store: ArtifactStore) -> list[tuple[str, Ending]]:
    found: list[tuple[str, Ending]] = []
    with store_errors_explained(store.url):
        try:
            paths: list[Any] = store.filesystem.ls(f"{store.root}/{_FOLDER}", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return found
        for path in sorted(map(str, paths)):
            try:
                text = store.filesystem.cat_file(path)
                found.append((path, Ending.model_validate_json(text)))
            except FileNotFoundError:  # another run has delivered it at this moment
                continue
            except ValidationError:  # a power cut, or a disk that was full
                logger.warning("%s is unreadable and stays where it is", path)
    return found
