"""What a training run reports: its curve, its speed, its progress line, its metrics in MLflow.

And early stopping, with the weights of the lowest held-out loss.

A step never waits for the tracker: a thread sends points. Those that the tracker does not take are
left out, and `runs.finish_run` logs what is missing of the curve when the run ends.
"""

import json
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from bert_core.batch import Batch
from bert_core.model.catalogue import TrainableModel
from bert_core.training.guard import SkippedStep
from bert_core.training.loop import MicroBatches
from bert_core.training.state import read_weights, save_model
from bert_core.training.step_operations import batch_operations
from pipelines.errors import first_line
from pipelines.stage import Progress
from pipelines.tracking.tracker import now_ms
from pipelines.train.messages import ProgressSender
from pipelines.versions import peak_resident_bytes

from mlflow import MlflowClient  # isort: skip  (after pipelines.tracking: its time limits)
from mlflow.entities import Metric  # isort: skip
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor  # isort: skip

logger = logging.getLogger(__name__)

BEST_FOLDER = "best"  # inside a checkpoint: the model to publish, where the run stops early

_FILE_NAME = "telemetry.json"
_SUMMARY = (
    "history", "resumed_from", "training_seconds", "num_tokens", "skipped", "num_steps",
    "first_step_seconds",
)  # fmt: skip
_PROGRESS_SECONDS = 0.5
_POINTS_A_CALL = 1000  # MLflow's own limit of one batch
_FLUSH_SECONDS = 5.0
_LAST_WORDS_SECONDS = 10.0
_WINDOW_STEPS = 500  # whose times the percentiles are of
_PERCENTILES = (50, 95, 99)


class Telemetry:
    """Reports of a training run. Those of rank 0 are sent; on other ranks nothing is.

    The curve is part of each checkpoint, so that a resumed run ends with the same curve. Speed is
    reported separately: no two runs are equally fast.
    """

    def __init__(
        self,
        stage: str,
        num_steps: int,
        speed: "Speed",
        progress: ProgressSender | None = None,
        metrics: "MetricLog | None" = None,
    ) -> None:
        self._stage = stage
        self._progress = progress
        self._metrics = metrics
        self._speed = speed
        self._last_shown = 0.0
        self._latest: dict[str, float] = {}
        self._step = 0
        self.num_steps = num_steps
        self.history: list[dict[str, Any]] = []
        self.resumed_from: list[int] = []  # steps at which the run was resumed
        self.training_seconds = 0.0  # in steps, evaluations and checkpoints not counted
        self.num_tokens = 0.0
        self.skipped: list[dict[str, Any]] = []  # steps that were left out, and what was wrong
        self.first_step_seconds: list[float] = []  # of each start, until its first step was done

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point after `step` steps to the curve and to MLflow."""
        if self.history and self.history[-1]["step"] == step:
            self.history[-1].update(figures)
        else:
            self.history.append({"step": step, **figures})
        self._latest.update(figures)
        if self._metrics is not None:
            self._metrics.add(step, figures)

    def take_step(self, step: int, seconds: float) -> None:
        """Record that `step` steps are done, the last of them in `seconds`."""
        self.training_seconds += seconds
        self._speed.take_step(step, seconds)

    def log_speed(self, step: int, num_tokens: float) -> None:
        """Log the speed after `num_tokens` tokens of all ranks."""
        self.num_tokens = num_tokens
        figures = self._speed.figures(step, self.num_steps, num_tokens, self.training_seconds)
        self._latest.update(figures)
        if self._metrics is not None:
            self._metrics.add(step, figures)

    def show(self, step: int, note: str = "") -> None:
        """Move the progress line; at most twice a second unless there is a note."""
        self._step = step
        now = time.monotonic()
        is_due = now - self._last_shown >= _PROGRESS_SECONDS or step == self.num_steps
        if self._progress is None or not (note or is_due):
            return
        self._last_shown = now
        self._progress.send(
            Progress(
                stage=self._stage,
                done=step,
                total=self.num_steps,
                unit="steps",
                figures=dict(self._latest),
                note=note,
                seconds_left=self._speed.seconds_left(step, self.num_steps),
            )
        )

    def note(self, sentence: str) -> None:
        """Add a line to the log of the run."""
        self.show(self._step, f"{self._stage}: {sentence}")

    def warn(self, sentence: str) -> None:
        """Add a line to the log of the run and to that of this worker."""
        logger.warning(sentence)
        self.note(sentence)

    def skip(self, skipped: Sequence[SkippedStep]) -> None:
        """Record skipped steps; progress shows the last one."""
        for each in skipped:
            figures = {"loss": each.loss, "gradient_norm": each.grad_norm, "limit": each.limit}
            # Text where it is no number: JSON has none.
            plain = {key: v if math.isfinite(v) else str(v) for key, v in figures.items()}
            self.skipped.append({"step": each.step, **plain})
        if len(skipped) == 1:
            self.warn(f"{skipped[0]}, so it was skipped")
        elif skipped:
            self.warn(f"{len(skipped)} steps were skipped, the last one: {skipped[-1]}")

    def close(self) -> None:
        """Send what is queued, with a short time limit."""
        if self._progress is not None:
            self._progress.close()
        if self._metrics is not None:
            self._metrics.close()

    def save(self, folder: Path) -> None:
        """Write the curve into a checkpoint."""
        (folder / _FILE_NAME).write_text(json.dumps(self.summary()))

    def restore(self, folder: Path, step: int) -> None:
        """Continue the curve of a checkpoint made after `step` steps."""
        saved = json.loads((folder / _FILE_NAME).read_text())
        for name in _SUMMARY:
            setattr(self, name, saved[name])
        self.resumed_from.append(step)
        self._speed.resume(self.num_tokens)

    def summary(self) -> dict[str, Any]:
        """The curve and totals so far, as plain values."""
        return {name: getattr(self, name) for name in _SUMMARY}


class MetricLog:
    """Sends points to a run in MLflow, from a thread; what the tracker does not take is lost here.

    A resumed run computes again the steps after its last checkpoint, with the same numbers: what
    lies before the last step that the tracker holds is not sent twice.
    """

    def __init__(self, uri: str, run_id: str) -> None:
        self._uri = uri
        self._run_id = run_id
        self._points: deque[Metric] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Record `figures` at optimizer step `step`; they leave within a few seconds."""
        now = now_ms()
        self._points.extend(Metric(key, value, now, step) for key, value in figures.items())

    def close(self) -> None:
        """Send what is missing, for a few seconds at most."""
        self._ending.set()
        self._thread.join(_LAST_WORDS_SECONDS)

    def _run(self) -> None:
        client: MlflowClient | None = None
        monitor: SystemMetricsMonitor | None = None
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
                    monitor = SystemMetricsMonitor(
                        self._run_id, tracking_uri=self._uri, resume_logging=True
                    )
                    monitor.start()
                new = [point for point in points if point.step > last_step]
                for first in range(0, len(new), _POINTS_A_CALL):
                    client.log_batch(self._run_id, new[first : first + _POINTS_A_CALL])
                is_away = False
            # Any error: no figure is worth a training run.
            except Exception as error:  # noqa: BLE001
                if not is_away:
                    logger.warning("the tracker does not answer: %s", first_line(error))
                is_away = True
        if monitor is not None and not is_away:
            monitor.finish()


class Speed:
    """A stopwatch beside the steps of one rank.

    `matrix_rate` is in operations a second, measured on this rank while the others measured
    theirs; ranks are taken to be alike.
    """

    def __init__(self, *, num_ranks: int, matrix_rate: float) -> None:
        self._matrix_rate = matrix_rate * num_ranks
        self._step_seconds: deque[float] = deque(maxlen=_WINDOW_STEPS)
        # The first step warms up: the time left is estimated from its end on.
        self._first: tuple[int, float] | None = None
        # Of this rank since the last point: what it waited for, computed, and saw of the tokens.
        self._seconds = self._waited = self._operations = 0.0
        self._own_tokens = 0
        self._tokens_before = 0.0

    def timed(self, model: TrainableModel, micro_batches: MicroBatches) -> MicroBatches:
        """The same micro-batches, with the waiting time and the operations counted."""

        def timed_batches(step: int) -> Iterator[tuple[int, Batch]]:
            started = time.perf_counter()
            batches: Sequence[tuple[int, Batch]] = list(micro_batches(step))
            self._waited += time.perf_counter() - started
            for _, batch in batches:
                self._operations += batch_operations(model, batch)
                self._own_tokens += batch.tokens.num_tokens
            return iter(batches)

        return timed_batches

    def resume(self, num_tokens: float) -> None:
        """Start after `num_tokens` tokens of all ranks that an earlier process trained on."""
        self._tokens_before = num_tokens

    def take_step(self, step: int, seconds: float) -> None:
        """Record that `step` steps are done, the last of them in `seconds`."""
        if self._first is None:
            self._first = (step, time.monotonic())
        self._step_seconds.append(seconds)
        self._seconds += seconds

    def seconds_left(self, step: int, num_steps: int) -> float | None:
        """Until the last step, with evaluations and checkpoints; None while it is not known."""
        if self._first is None or not self._first[0] < step <= num_steps:
            return None
        begun, at = self._first
        return (num_steps - step) * (time.monotonic() - at) / (step - begun)

    def figures(
        self, step: int, num_steps: int, num_tokens: float, training_seconds: float
    ) -> dict[str, float]:
        """Figures after `step` steps, since the last call and over all.

        `num_tokens` of all ranks went into `training_seconds`, of this run and those before it.
        """
        taken = np.percentile(np.array(self._step_seconds), _PERCENTILES)
        figures = {
            f"speed/step_seconds_p{percent}": float(seconds)
            for percent, seconds in zip(_PERCENTILES, taken, strict=True)
        }
        new_tokens = num_tokens - self._tokens_before
        if training_seconds > 0:
            figures["speed/tokens_per_second_overall"] = num_tokens / training_seconds
        if self._seconds > 0:
            figures["speed/tokens_per_second"] = new_tokens / self._seconds
            if self._own_tokens:
                operations = self._operations * new_tokens / self._own_tokens
                figures["speed/utilization"] = operations / self._seconds / self._matrix_rate
            figures["speed/data_wait"] = self._waited / self._seconds
        left = self.seconds_left(step, num_steps)
        if left is not None:
            figures["speed/seconds_left"] = left
        self._tokens_before = num_tokens
        self._seconds = self._waited = self._operations = 0.0
        self._own_tokens = 0
        return figures | memory_figures()


def memory_figures() -> dict[str, float]:
    """Present and peak memory of this process, and of its GPU if it uses one."""
    figures = {
        "memory/resident_bytes": float(psutil.Process().memory_info().rss),
        "memory/peak_bytes": float(peak_resident_bytes()),
    }
    if torch.cuda.is_initialized():
        figures["memory/gpu_bytes"] = float(torch.cuda.memory_reserved())
        figures["memory/gpu_peak_bytes"] = float(torch.cuda.max_memory_reserved())
    return figures


class Best:
    """The weights with the lowest held-out loss so far; every rank holds them.

    The best evaluation and the patience left are functions of the curve, so a resumed run stops
    after the same step with the same weights.
    """

    def __init__(self, patience: int) -> None:
        self._patience = patience  # evaluations without a lower loss
        self._weights: dict[str, Tensor] = {}

    def consider(self, model: TrainableModel, history: Sequence[Mapping[str, Any]]) -> None:
        """Keep the weights of `model` where the last evaluation of the curve is its best."""
        losses = heldout_losses(history)
        if losses and _place_of_least(losses) == len(losses) - 1:
            self._weights = {
                name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()
            }

    def is_over(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the patience is used up."""
        losses = heldout_losses(history)
        return bool(losses) and len(losses) - 1 - _place_of_least(losses) >= self._patience

    def put_into(self, model: TrainableModel) -> None:
        """Give `model` the best weights; those it has where nothing was evaluated."""
        if self._weights:
            model.load_state_dict(self._weights)

    def save(self, folder: Path, model: TrainableModel) -> None:
        """Write the best weights, where there are any, as a model into a checkpoint."""
        if not self._weights:
            return
        present = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with torch.no_grad():
            self.put_into(model)
            try:
                save_model(folder / BEST_FOLDER, model)
            finally:
                model.load_state_dict(present)

    def restore(self, folder: Path) -> None:
        """Read the best weights of a checkpoint."""
        best = folder / BEST_FOLDER
        self._weights = read_weights(best) if best.is_dir() else {}


def heldout_loss(point: Mapping[str, Any]) -> float | None:
    """The sum of the held-out losses of a point of a curve; None where it has none."""
    losses = [v for k, v in point.items() if k.startswith("eval/") and k.endswith("loss")]
    return sum(losses) if losses else None


def heldout_losses(history: Sequence[Mapping[str, Any]]) -> list[float]:
    """The held-out loss of every evaluation of a curve; what is no number counts as infinite."""
    losses = [loss for loss in map(heldout_loss, history) if loss is not None]
    return [loss if math.isfinite(loss) else math.inf for loss in losses]


def best_step(history: Sequence[Mapping[str, Any]]) -> int:
    """The step whose evaluation has the least held-out loss; raises ValueError without any."""
    steps = [point["step"] for point in history if heldout_loss(point) is not None]
    return int(steps[_place_of_least(heldout_losses(history))])


def _place_of_least(losses: Sequence[float]) -> int:
    """The first of equal ones."""
    return min(range(len(losses)), key=losses.__getitem__)
