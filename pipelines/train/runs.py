"""The tracker's record of a training run: one MLflow run for each attempt at an artifact."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

from pipelines.errors import UserError, redacted
from pipelines.stage import StageContext
from pipelines.store import Artifact, Draft
from pipelines.tracking.tracker import FINGERPRINT_TAG, Tracker, now_ms, tracker_errors
from pipelines.train.saving import HISTORY_FILE

logger = logging.getLogger(__name__)

_RECORD = "tracking.json"  # beside the checkpoints, and removed with them
_CONTEXT = "mlflow.data.context"  # MLflow's own tag of what a dataset was used for
_POINTS_A_CALL = 1000  # MLflow's own limit of one batch


def training_input(data: Artifact, num_rows: int) -> DatasetInput:
    """`data` as MLflow lists it: its kind, fingerprint, location and number of training rows."""
    scheme, separator, _ = data.url.partition("://")
    dataset = Dataset(
        name=data.kind,
        digest=data.fingerprint,
        source_type=scheme if separator else "local",
        source=json.dumps({"uri": redacted(data.url)}),
        profile=json.dumps({"num_rows": num_rows}),
    )
    return DatasetInput(dataset, [InputTag(_CONTEXT, "training")])


@contextmanager
def open_run(
    stage: str,
    settings: Mapping[str, object],
    draft: Draft,
    context: StageContext,
    data: Sequence[DatasetInput] = (),
) -> Iterator[str | None]:
    """The id of the run that records this attempt at the artifact; None without a tracker.

    The run names `data` as what it was trained on. An attempt that is resumed keeps its run; one
    that starts over, because the artifact was removed, gets a new one. Raises UserError if the
    tracker does not answer. If the block ends with an error so does the run: as failed, or as
    killed. If not, `finish_run` ends it once the artifact is published.
    """
    tracker = context.tracker
    if tracker is None:
        yield None
        return
    run_id = _kept_run(draft, tracker)
    if run_id is None:
        run_id = tracker.create_run(
            f"{stage}-{draft.fingerprint[:8]}",
            draft.fingerprint,
            params=settings,
            tags={"bertsmith.stage": stage},
            data=data,
        )
        draft.note(_RECORD, json.dumps({"uri": tracker.shown_uri, "run_id": run_id}))
    try:
        yield run_id
    except BaseException as error:
        tracker.abandon(run_id, error)
        raise


def _kept_run(draft: Draft, tracker: Tracker) -> str | None:
    try:
        record = json.loads(draft.filesystem.cat_file(f"{draft.work}/{_RECORD}"))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a power cut may leave half of it
        return None
    if record["uri"] != tracker.shown_uri:
        return None
    tracker.experiment_id()  # raises UserError if the tracker does not answer
    try:
        client = tracker.client()
        if client.get_run(record["run_id"]).info.lifecycle_stage != "active":
            return None
        client.update_run(record["run_id"], status="RUNNING")
        tracker.set_tags(record["run_id"], tracker.tags)  # of who works on it now
    except tracker_errors() as error:
        logger.warning("the run of this attempt is gone, it gets a new one: %s", error)
        return None
    return str(record["run_id"])


def finish_run(artifact: Artifact, context: StageContext) -> None:
    """End the run of a published model: with its final figures, and what it lacks of the curve.

    Nothing happens where it has ended already. A tracker that is away leaves the run open: the next
    run that asks for the artifact ends it.
    """
    tracker = context.tracker
    if tracker is None or not tracker.answers():
        return
    errors: tuple[type[Exception], ...] = (UserError, *tracker_errors())
    try:
        client = tracker.client()
        recording = f"tags.`{FINGERPRINT_TAG}` = '{artifact.fingerprint}'"
        newest = client.search_runs([tracker.experiment_id()], recording, max_results=1)
        if not newest or newest[0].info.status == "FINISHED":
            return
        run_id = newest[0].info.run_id
        history = json.loads(artifact.local(HISTORY_FILE).read_text())
        points = list(_missing_points(tracker, run_id, history))
        for first in range(0, len(points), _POINTS_A_CALL):
            client.log_batch(run_id, points[first : first + _POINTS_A_CALL])
        tracker.finish(
            run_id,
            numbers(artifact.statistics),
            computed_on=artifact.statistics.get("computed_on"),
        )
    except errors as error:
        logger.warning("the run of %s stays open: %s", artifact.fingerprint, error)


def _missing_points(
    tracker: Tracker, run_id: str, history: Sequence[Mapping[str, float]]
) -> Iterator[Metric]:
    client = tracker.client()
    for key in {key for point in history for key in point} - {"step"}:
        known = {point.step for point in client.get_metric_history(run_id, key)}
        for point in history:
            if key in point and point["step"] not in known:
                yield Metric(key, point[key], now_ms(), int(point["step"]))


def numbers(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The entries that a metric can hold."""
    return {
        key: float(value)
        for key, value in statistics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def training_statistics(result: Mapping[str, Any]) -> dict[str, Any]:
    """How long a training run took, how fast it was, where it was resumed and computed."""
    seconds = result["training_seconds"]
    return {
        "training_seconds": round(seconds, 3),
        "num_tokens": round(result["num_tokens"]),
        "tokens_per_second": round(result["num_tokens"] / seconds) if seconds else 0,
        "resumed_from": result["resumed_from"],
        "first_step_seconds": result["first_step_seconds"],
        "computed_on": result["computed_on"],
        # Only where a step was skipped: a healthy training has none.
        **({"skipped": result["skipped"]} if result["skipped"] else {}),
    }
