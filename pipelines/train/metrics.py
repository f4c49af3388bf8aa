"""What a training run reports: its curve, its speed and its progress, and its run in MLflow.

And early stopping, with the weights of the lowest validation loss.

A step never waits for the tracker: a thread sends points. Those that the tracker does not take are
left out, and `finish_run` logs what is missing of the curve when the run ends. MLflow is imported
where a run is recorded: a rank that records none does without, and its 2 s.
"""

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.actor import ActorHandle
from torch import Tensor

from bert_core.model.catalogue import TrainableModel
from bert_core.training.guard import SkippedStep
from bert_core.training.state import read_weights, save_model
from pipelines.errors import first_line
from pipelines.stage import Progress, StageContext
from pipelines.store import Artifact, Draft

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

HISTORY_FILE = "history.json"  # of an artifact: its curve
BEST_FOLDER = "best"  # inside a checkpoint: the model to publish, where the run stops early

_FILE_NAME = "telemetry.json"
_SUMMARY = ("history", "resumed_from", "training_seconds", "num_tokens", "skipped", "num_steps")
_PROGRESS_SECONDS = 0.5
_POINTS_A_CALL = 1000  # MLflow's own limit of one batch
_FLUSH_SECONDS = 5.0
_LAST_WORDS_SECONDS = 10.0
_LAST_PROGRESS_SECONDS = 2.0


class Telemetry:
    """Reports of a training run. Those of rank 0 are sent; on other ranks nothing is.

    The curve is part of each checkpoint, so that a resumed run ends with the same curve. Speed is
    reported separately: no two runs are equally fast.
    """

    def __init__(
        self,
        stage: str,
        num_steps: int,
        messages: "ActorHandle[Any] | None" = None,
        metrics: "MetricLog | None" = None,
    ) -> None:
        self._stage = stage
        self._messages = messages  # see `launch.messages_of_workers`
        self._last_sent: Any = None
        self._metrics = metrics
        self._last_shown = 0.0
        self._latest: dict[str, float] = {}
        self._step = 0
        self._seconds_before = self._tokens_before = 0.0  # at the last point
        self.num_steps = num_steps
        self.history: list[dict[str, Any]] = []
        self.resumed_from: list[int] = []  # steps at which the run was resumed
        self.training_seconds = 0.0  # in steps, evaluations and checkpoints not counted
        self.num_tokens = 0.0
        self.skipped: list[dict[str, Any]] = []  # steps that were left out, and what was wrong

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point after `step` steps to the curve and to MLflow."""
        if self.history and self.history[-1]["step"] == step:
            self.history[-1].update(figures)
        else:
            self.history.append({"step": step, **figures})
        self._report(step, figures)

    def _report(self, step: int, figures: Mapping[str, float]) -> None:
        self._latest.update(figures)
        if self._metrics is not None:
            self._metrics.add(step, figures)

    def log_speed(self, step: int, num_tokens: float) -> None:
        """Report the speed since the last call, after `num_tokens` tokens of all ranks."""
        seconds = self.training_seconds - self._seconds_before
        if seconds > 0:
            speed = (num_tokens - self._tokens_before) / seconds
            self._report(step, {"speed/tokens_per_second": speed})
        self.num_tokens = self._tokens_before = num_tokens
        self._seconds_before = self.training_seconds

    def show(self, step: int, note: str = "") -> None:
        """Move the progress line; at most twice a second unless there is a note."""
        self._step = step
        now = time.monotonic()
        is_due = now - self._last_shown >= _PROGRESS_SECONDS or step == self.num_steps
        if self._messages is None or not (note or is_due):
            return
        self._last_shown = now
        self._last_sent = self._messages.send.remote(
            Progress(
                stage=self._stage,
                done=step,
                total=self.num_steps,
                unit="steps",
                figures=dict(self._latest),
                note=note,
            )
        )

    def warn(self, sentence: str) -> None:
        """Add a line to the log of the run and to that of this worker."""
        logger.warning(sentence)
        self.show(self._step, f"{self._stage}: {sentence}")

    def skip(self, skipped: Sequence[SkippedStep]) -> None:
        """Record skipped steps; progress shows the last one."""
        for each in skipped:
            figures = {"loss": each.loss, "gradient_norm": each.grad_norm, "limit": each.limit}
            # Text where it is no number: JSON has none.
            plain = {key: v if math.isfinite(v) else str(v) for key, v in figures.items()}
            self.skipped.append({"step": each.step, **plain})
        if skipped:
            self.warn(f"{len(skipped)} skipped: {skipped[-1]}")

    def close(self) -> None:
        """Send what is queued, with a short time limit."""
        if self._last_sent is not None:
            ray.wait([self._last_sent], timeout=_LAST_PROGRESS_SECONDS)
        if self._metrics is not None:
            self._metrics.close()

    def save(self, folder: Path) -> None:
        """Write the curve into a checkpoint."""
        (folder / _FILE_NAME).write_text(json.dumps(self.summary()))

    def restore(self, folder: Path, step: int) -> None:
        """Continue the curve of a checkpoint made after `step` steps."""
        for name, value in json.loads((folder / _FILE_NAME).read_text()).items():
            setattr(self, name, value)
        self.resumed_from.append(step)
        self._tokens_before, self._seconds_before = self.num_tokens, self.training_seconds

    def summary(self) -> dict[str, Any]:
        """The curve and totals so far, as plain values."""
        return {name: getattr(self, name) for name in _SUMMARY}


class Point(NamedTuple):
    """A number of a curve, as MLflow's `Metric` takes it."""

    key: str
    value: float
    timestamp: int  # ms
    step: int


class MetricLog:
    """Sends points to a run in MLflow, from a thread; what the tracker does not take is lost here.

    A resumed run computes again the steps after its last checkpoint, with the same numbers: what
    lies before the last step that the tracker holds is not sent twice.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        from pipelines.tracking import tracker  # noqa: F401  (before the first step is timed)

        self._uri = uri
        self._run_id = run_id
        self._points: deque[Point] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Record `figures` at optimizer step `step`; they leave within a few seconds."""
        now = _now_ms()
        self._points.extend(Point(key, value, now, step) for key, value in figures.items())

    def close(self) -> None:
        """Send what is missing, for a few seconds at most."""
        self._ending.set()
        self._thread.join(_LAST_WORDS_SECONDS)

    def _run(self) -> None:
        from mlflow import MlflowClient

        client: MlflowClient | None = None
        last_step = -1  # that the tracker holds
        is_away = is_last_round = False
        while not is_last_round:
            is_last_round = self._ending.wait(_FLUSH_SECONDS)
            points = [self._points.popleft() for _ in range(len(self._points))]
            try:
                if client is None:  # a database is opened here, which may fail and be there later
                    client = MlflowClient(tracking_uri=self._uri)
                    curve = client.get_metric_history(self._run_id, "train/loss")
                    last_step = max((point.step for point in curve), default=-1)
                _send(client, self._run_id, [each for each in points if each.step > last_step])
                is_away = False
            # Any error: no figure is worth a training run.
            except Exception as error:  # noqa: BLE001
                if not is_away:
                    logger.warning("the tracker does not answer: %s", first_line(error))
                is_away = True


def _send(client: "MlflowClient", run_id: str, points: Sequence[Point]) -> None:
    from mlflow.entities import Metric

    metrics = [Metric(*point) for point in points]
    for first in range(0, len(metrics), _POINTS_A_CALL):
        client.log_batch(run_id, metrics[first : first + _POINTS_A_CALL])


def _now_ms() -> int:
    return int(time.time() * 1000)


@contextmanager
def open_run(
    stage: str, settings: Mapping[str, object], draft: Draft, context: StageContext
) -> Iterator[str | None]:
    """The id of the run that records this attempt at the artifact; None without a tracker.

    An attempt that is resumed keeps its run. Raises UserError if the tracker does not answer. If
    the block ends with an error so does the run: as failed, or as killed. If not, `finish_run` ends
    it once the artifact is published.
    """
    tracker = context.tracker
    if tracker is None:
        yield None
        return
    run = tracker.find_run(draft.fingerprint)
    if run is None or run.info.status == "FINISHED":  # its artifact was removed
        run_id = tracker.create_run(
            f"{stage}-{draft.fingerprint[:8]}",
            draft.fingerprint,
            params=settings,
            tags={"bertsmith.stage": stage},
        )
    else:
        run_id = run.info.run_id
        with tracker.answering():
            tracker.client().update_run(run_id, status="RUNNING")
            tracker.set_tags(run_id, tracker.tags)  # of who works on it now
    try:
        yield run_id
    except BaseException as error:
        tracker.abandon(run_id, error)
        raise


def finish_run(artifact: Artifact, context: StageContext) -> None:
    """End the run of a published model: with its final figures, and what it lacks of the curve.

    Nothing happens where it has ended already. A tracker that is away leaves the run open: the next
    run that asks for the artifact ends it.
    """
    from pipelines.tracking.tracker import leaving_open

    tracker = context.tracker
    if tracker is None:
        return
    with leaving_open(f"of {artifact.fingerprint}"):
        run = tracker.find_run(artifact.fingerprint)
        if run is None or run.info.status == "FINISHED":
            return
        client, run_id = tracker.client(), run.info.run_id
        history = json.loads(artifact.local(HISTORY_FILE).read_text())
        missing = []
        for key in {key for point in history for key in point} - {"step"}:
            known = {point.step for point in client.get_metric_history(run_id, key)}
            missing += [
                Point(key, point[key], _now_ms(), int(point["step"]))
                for point in history
                if key in point and point["step"] not in known
            ]
        _send(client, run_id, missing)
        tracker.finish(
            run_id, numbers(artifact.statistics), computed_on=artifact.statistics.get("computed_on")
        )


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
        "computed_on": result["computed_on"],
        # Only where a step was skipped: a healthy training has none.
        **({"skipped": result["skipped"]} if result["skipped"] else {}),
    }


class EarlyStopping:
    """The weights with the lowest validation loss so far; every rank holds them.

    The best evaluation and the patience left are functions of the curve, so a resumed run stops
    after the same step with the same weights.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience  # evaluations without a lower loss
        self._weights: dict[str, Tensor] = {}

    def update(self, model: TrainableModel, history: Sequence[Mapping[str, Any]]) -> None:
        """Keep the weights of `model` where the last point of the curve is its best evaluation."""
        if best_step(history) == history[-1]["step"]:
            self._weights = {
                name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()
            }

    def should_stop(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the patience is used up."""
        losses = validation_losses(history)
        best = min(losses, key=losses.__getitem__, default=0)
        return sum(step > best for step in losses) >= self._patience

    def load_into(self, model: TrainableModel) -> None:
        """Give `model` the best weights; those it has where nothing was evaluated."""
        if self._weights:
            model.load_state_dict(self._weights)

    def save(self, folder: Path, model: TrainableModel) -> None:
        """Write the best weights, where there are any, as a model into a checkpoint."""
        if not self._weights:
            return
        present = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        try:
            self.load_into(model)
            save_model(folder / BEST_FOLDER, model)
        finally:
            model.load_state_dict(present)

    def restore(self, folder: Path) -> None:
        """Read the best weights of a checkpoint."""
        best = folder / BEST_FOLDER
        self._weights = read_weights(best) if best.is_dir() else {}


def validation_losses(history: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The sum of the validation losses after each evaluated step of a curve.

    What is no number counts as infinite.
    """
    losses: dict[int, float] = {}
    for point in history:
        parts = [v for k, v in point.items() if k.startswith("validation/") and k.endswith("loss")]
        if parts:
            total = sum(parts)
            losses[int(point["step"])] = total if math.isfinite(total) else math.inf
    return losses


def best_step(history: Sequence[Mapping[str, Any]]) -> int:
    """The first step with the least validation loss; raises ValueError without any evaluation."""
    losses = validation_losses(history)
    return min(losses, key=losses.__getitem__)
