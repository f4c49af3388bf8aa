"""The figures of a flow run for Prometheus, which asks the Ray agent on the run's machine for them.

Names and labels are a contract with dashboards and alerts: docs/operations.md lists them.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pipelines.artifacts.store import being_built
from pipelines.stage import Progress

if TYPE_CHECKING:  # importing Ray takes a second that a run which reuses everything need not spend
    from ray.util.metrics import Gauge

PREFIX = "bertsmith_"
_SET_SECONDS = 5.0  # Ray forgets a gauge some 20 s after it was last set
_FRESH_SECONDS = 60.0  # an older rate is not the current rate
_STEPS = "steps"
_TRAINING = {  # by what `Progress.figures` calls them
    "train/loss": ("loss", "Training loss of the last logged step."),
    "total/data_wait_seconds": ("data_wait_seconds_total", "Time rank 0 waited for examples."),
    "total/step_seconds": ("step_seconds_sum", "Time of all steps of this process."),
    "total/steps": ("step_seconds_count", "Steps of this process."),
    "checkpoint/bytes": ("checkpoint_bytes", "Size of the newest stored checkpoint."),
}
_RATES = {
    "speed/tokens_per_second": ("tokens_per_second", ""),
    "speed/step_seconds_p50": ("step_seconds", "0.5"),
    "speed/step_seconds_p95": ("step_seconds", "0.95"),
    "speed/step_seconds_p99": ("step_seconds", "0.99"),
}
_PURPOSES = {
    "step": "Optimizer steps done.",
    "steps_planned": "Optimizer steps of the training run.",
    "shards_done": "Parts of the stage done.",
    "shards_total": "Parts of the stage.",
    "tokens_per_second": "Tokens of all ranks per second.",
    "step_seconds": "Quantiles over the last 500 steps of this process.",
    "checkpoint_age_seconds": "Time since the newest checkpoint was stored.",
    **dict(_TRAINING.values()),
}


class _Reported(NamedTuple):
    progress: Progress
    fingerprint: str
    at: float  # on the monotonic clock


class RunMetrics:
    """Keeps the latest progress of each stage of one run, and sets Ray's gauges to it."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._reported: dict[str, _Reported] = {}
        self._gauges: dict[str, Gauge] = {}

    def observe(self, progress: Progress) -> None:
        """Keep how far a stage has come. Any thread may call it."""
        made = being_built()
        reported = _Reported(progress, made.fingerprint if made else "", time.monotonic())
        with self._lock:
            if progress.unit == _STEPS:  # one at a time; what was measured before it has ended
                self._reported = {
                    stage: each for stage, each in self._reported.items()
                    if each.progress.unit != _STEPS or stage == progress.stage
                }  # fmt: skip
            self._reported[progress.stage] = reported

    def stage_ended(self) -> None:
        """Forget training runs: one that is over would look like one that hangs."""
        with self._lock:
            self._reported = {
                name: each for name, each in self._reported.items() if each.progress.unit != _STEPS
            }

    def set_gauges(self) -> None:
        """Hand the latest values to Ray, where this process has one."""
        if "ray" not in sys.modules:
            return  # to import it here would be before its environment is set
        with self._lock:
            reported = dict(self._reported)
        for stage, each in reported.items():
            labels = {"run": self._run, "stage": stage, "fingerprint": each.fingerprint}
            for name, quantile, value in _values(each):
                self._gauge(name).set(value, {**labels, "quantile": quantile})

    def _gauge(self, name: str) -> "Gauge":
        from ray.util.metrics import Gauge

        if name not in self._gauges:
            labels = ("run", "stage", "fingerprint", "quantile")
            self._gauges[name] = Gauge(PREFIX + name, _PURPOSES[name], tag_keys=labels)
        return self._gauges[name]


def _values(reported: _Reported) -> Iterator[tuple[str, str, float]]:
    """Name, quantile and value of each figure of the stage."""
    progress, figures = reported.progress, reported.progress.figures
    done, total = (
        ("step", "steps_planned") if progress.unit == _STEPS else ("shards_done", "shards_total")
    )
    yield done, "", progress.done
    if progress.total:  # else not known yet
        yield total, "", progress.total
    for figure, (name, _) in _TRAINING.items():
        if figure in figures:
            yield name, "", float(figures[figure])
    if "checkpoint/stored_at" in figures:
        age = time.time() - float(figures["checkpoint/stored_at"])
        yield "checkpoint_age_seconds", "", max(0.0, age)
    if time.monotonic() - reported.at < _FRESH_SECONDS:
        for figure, (name, quantile) in _RATES.items():
            if figure in figures:
                yield name, quantile, float(figures[figure])


@contextmanager
def published_metrics(run: str) -> Iterator[RunMetrics]:
    """Metrics that a thread hands to Ray for as long as the block lasts."""
    metrics = RunMetrics(run)
    ended = threading.Event()

    def keep_setting() -> None:
        while not ended.wait(_SET_SECONDS):
            metrics.set_gauges()

    threading.Thread(target=keep_setting, name="run-metrics", daemon=True).start()
    try:
        yield metrics
    finally:
        ended.set()
