"""What a training run reports: its curve, its progress line, its metrics in MLflow.

And early stopping, with the weights of the lowest held-out loss.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_core.model.catalogue import TrainableModel
from bert_core.training.guard import SkippedStep
from bert_core.training.state import read_weights, save_model
from pipelines.stage import Progress
from pipelines.tracking.tracker import now_ms
from pipelines.training.checkpoint_files import BEST_FOLDER
from pipelines.training.messages import ProgressSender
from pipelines.training.metrics import MetricLog, Point
from pipelines.training.speed import Speed, SystemMetrics

_FILE_NAME = "telemetry.json"
_SUMMARY = (
    "history", "times", "resumed_from", "training_seconds", "num_tokens", "skipped",
    "first_step_seconds",
)  # fmt: skip
_PROGRESS_SECONDS = 0.5


def heldout_loss(point: Mapping[str, Any]) -> float | None:
    """The sum of the held-out losses of a point of a curve; None where it has none."""
    losses = [v for k, v in point.items() if k.startswith("eval/") and k.endswith("loss")]
    return sum(losses) if losses else None


class Telemetry:
    """Reports of a training run. Those of rank 0 are sent; on other ranks nothing is.

    The curve is part of each checkpoint, so that a resumed run ends with the same curve. Speed is
    reported separately: no two runs are equally fast.
    """

    def __init__(
        self,
        stage: str,
        num_steps: int,
        progress: ProgressSender | None,
        metrics: MetricLog | None,
        speed: Speed,
    ) -> None:
        self._stage = stage
        self._num_steps = num_steps
        self._progress = progress
        self._metrics = metrics
        if metrics is not None:
            metrics.warn = self.warn
        self._system = SystemMetrics(metrics) if metrics is not None else None
        self._speed = speed
        self._last_shown = 0.0
        self._latest: dict[str, float] = {}
        self.history: list[dict[str, Any]] = []
        self.times: list[int] = []  # of its points, in milliseconds
        self.resumed_from: list[int] = []  # steps at which the run was resumed
        self.training_seconds = 0.0  # in steps, evaluations and checkpoints not counted
        self.num_tokens = 0.0
        self.skipped: list[dict[str, Any]] = []  # steps that were left out, and what was found
        self.first_step_seconds: list[float] = []  # of each start, until its first step was done
        self._step = 0

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Add a point after `step` steps to the curve and to MLflow."""
        if self.history and self.history[-1]["step"] == step:
            self.history[-1].update(figures)
        else:
            self.history.append({"step": step, **figures})
            self.times.append(now_ms())
        self._latest.update(figures)
        if self._metrics is not None:
            self._metrics.add(step, figures, self.times[-1])

    def take_step(self, step: int, seconds: float) -> None:
        """Record that `step` steps are done, the last of them in `seconds`."""
        self.training_seconds += seconds
        self._speed.take_step(step, seconds)
        if self._system is not None:
            self._system.step = step

    def log_speed(self, step: int, num_tokens: float) -> None:
        """Log the speed after `num_tokens` tokens of all ranks."""
        self.num_tokens = num_tokens
        figures = self._speed.figures(step, num_tokens, self.training_seconds)
        self._latest.update(figures)
        self._latest.update(self._speed.totals())
        if self._metrics is not None:
            self._metrics.add(step, figures)

    def show_checkpoint(self, figures: Mapping[str, float]) -> None:
        """Show the newest stored checkpoint, beside the progress line."""
        self._latest.update(figures)

    def show(self, step: int, note: str = "") -> None:
        """Move the progress line; at most twice a second unless there is a note."""
        self._step = step
        now = time.monotonic()
        is_due = now - self._last_shown >= _PROGRESS_SECONDS or step == self._num_steps
        if self._progress is None or not (note or is_due):
            return
        self._last_shown = now
        self._progress.send(
            Progress(
                stage=self._stage,
                done=step,
                total=self._num_steps,
                unit="steps",
                figures=dict(self._latest),
                note=note,
                seconds_left=self._speed.seconds_left(step),
            )
        )

    def warn(self, sentence: str) -> None:
        """Show a warning at the present step."""
        self.show(self._step, f"{self._stage}: {sentence}")

    def skip(self, skipped: Sequence[SkippedStep]) -> None:
        """Record skipped steps; progress shows the last one."""
        for each in skipped:
            figures = {"loss": each.loss, "gradient_norm": each.grad_norm, "limit": each.limit}
            # Text where it is no number: JSON has none.
            plain = {key: v if math.isfinite(v) else str(v) for key, v in figures.items()}
            self.skipped.append({"step": each.step, **plain})
        if skipped:
            several = f"{len(skipped)} steps were skipped, the last one: " * (len(skipped) > 1)
            self.warn(f"{several}{skipped[-1]}" + ", so it was skipped" * (not several))

    def heldout_loss(self, step: int) -> float | None:
        """The sum of the held-out losses at `step`; None where it was not evaluated."""
        point = self.history[-1] if self.history else {"step": -1}
        return heldout_loss(point) if point["step"] == step else None

    def close(self) -> None:
        """Send what is queued, with a short time limit."""
        if self._progress is not None:
            self._progress.close()
        if self._system is not None:
            self._system.close()
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
        if self._metrics is not None:
            for point, timestamp in zip(self.history, self.times, strict=True):
                figures = {key: value for key, value in point.items() if key != "step"}
                self._metrics.add(point["step"], figures, timestamp)

    def summary(self) -> dict[str, Any]:
        """The curve and totals so far, as plain values."""
        return {name: getattr(self, name) for name in _SUMMARY}

    def undelivered(self) -> list[Point]:
        """What MLflow lacks of the curve."""
        return self._metrics.missing() if self._metrics is not None else []


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
