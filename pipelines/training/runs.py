"""The tracker's record of a training run: one run for each attempt, whatever interrupts it.

And the statistics that it ends with.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mlflow.entities import Dataset, DatasetInput, InputTag
from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.artifacts import Artifact, Draft
from pipelines.config.errors import redacted
from pipelines.stage import StageContext
from pipelines.tracking.tracker import Tracker, now_ms
from pipelines.training.metrics import Ending, Point, deliver_kept, lifecycle_stage

logger = logging.getLogger(__name__)

_RECORD = "tracking.json"  # beside the checkpoints, and removed with them
_CONTEXT = "mlflow.data.context"  # MLflow's own tag of what a dataset was used for


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)

    uri: str  # it lies in the store: no secrets
    run_id: str


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


def open_run(
    stage: str,
    settings: Mapping[str, object],
    draft: Draft,
    context: StageContext,
    data: Sequence[DatasetInput] = (),
) -> str | None:
    """The id of the run that records this attempt at the artifact; None without a tracker.

    The run names `data` as what it was trained on.
    An attempt that is resumed keeps its run. One that starts over, because the artifact was
    removed, gets a new run: the points of two training runs never mix. Raises UserError if the
    tracker does not answer.
    """
    if context.tracker is None:
        return None
    for sentence in deliver_kept(context.store, context.tracker):
        logger.info(sentence)
    run_id = _kept_run(draft, context.tracker)
    if run_id is None:
        run_id = context.tracker.create_run(
            f"{stage}-{draft.fingerprint[:8]}",
            draft.fingerprint,
            params=settings,
            tags={"bertsmith.stage": stage},
            data=data,
        )
        _keep_run(draft, context.tracker, run_id)
    return run_id


class Trained(NamedTuple):
    """What a training run ends with, and the machine of the worker that made its final figures."""

    statistics: dict[str, Any]
    computed_on: Mapping[str, str]
    undelivered: Sequence[Point] = ()  # what the tracker did not take of its curves


def recorded(
    run_id: str | None, context: StageContext, train: Callable[[], Trained]
) -> dict[str, Any]:
    """Run the training run and end its run with the statistics it returns, as failed, or as killed.

    What the tracker does not take of a finished training is kept in the store.
    """
    if run_id is None or context.tracker is None:
        return train().statistics
    try:
        trained = train()
    except BaseException as error:
        context.tracker.abandon(run_id, error)
        raise
    ending = Ending(
        uri=context.tracker.shown_uri,
        run_id=run_id,
        points=tuple(trained.undelivered),
        figures=numbers(trained.statistics),
        computed_on=trained.computed_on,
        end_time=now_ms(),
    )
    if not ending.deliver(context.tracker):
        ending.keep(context.store)
    return trained.statistics


def numbers(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The entries that a metric can hold."""
    return {
        key: float(value)
        for key, value in statistics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def throughput(result: Mapping[str, Any]) -> dict[str, Any]:
    """How long the training run took, how fast it was and where it was resumed."""
    seconds = result["training_seconds"]
    return {
        "training_seconds": round(seconds, 3),
        "num_tokens": round(result["num_tokens"]),
        "tokens_per_second": round(result["num_tokens"] / seconds) if seconds else 0,
        "resumed_from": result["resumed_from"],
        "first_step_seconds": result["first_step_seconds"],
        # Only where something was found: a healthy training has none.
        **({"skipped": result["skipped"]} if result["skipped"] else {}),
    }


def _kept_run(draft: Draft, tracker: Tracker) -> str | None:
    path = f"{draft.work}/{_RECORD}"
    try:
        record = _Record.model_validate_json(draft.filesystem.cat_file(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError:  # a power cut, or a disk that was full
        logger.warning("%s is unreadable: this attempt gets a new run", path)
        return None
    if record.uri != tracker.shown_uri:
        return None
    tracker.experiment_id()  # raises UserError if the tracker does not answer
    with tracker.answering():
        if lifecycle_stage(tracker, record.run_id) != "active":
            return None
        tracker.client().update_run(record.run_id, status="RUNNING")
        tracker.set_tags(record.run_id, tracker.tags)  # of who works on it now
    return record.run_id


def _keep_run(draft: Draft, tracker: Tracker, run_id: str) -> None:
    draft.note(_RECORD, _Record(uri=tracker.shown_uri, run_id=run_id).model_dump_json())
