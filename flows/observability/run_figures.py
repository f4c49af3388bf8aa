"""The figures of one flow run as Prometheus reads them: of the stage that works, as it tells them.

Names and labels are a contract with dashboards and alerts: docs/operations.md lists them.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.artifacts.store import being_built
from pipelines.core.stage import Progress

PREFIX = "bertsmith_"
_LABELS = ("run", "stage", "fingerprint")
_FRESH_SECONDS = 60.0  # a rate that is older is no rate of now
_QUANTILES = {"0.5": "p50", "0.95": "p95", "0.99": "p99"}
_STEPS = "steps"

_Value = Callable[[Progress], float | None]


@dataclass(frozen=True, slots=True)
class _Heard:
    """What a stage told last."""

    progress: Progress
    fingerprint: str
    at: float  # on the monotonic clock


class RunFigures(Collector):
    """Keeps what the stages of the run called `run` tell, for whoever asks.

    A training has figures while its stage goes on; parts of the data that are done stay done.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._heard: dict[str, _Heard] = {}

    def observe(self, progress: Progress) -> None:
        """Keep how far a stage has come. It may be called from any thread and never waits long."""
        made = being_built()
        heard = _Heard(progress, made.fingerprint if made else "", time.monotonic())
        with self._lock:
            self._heard[progress.stage] = heard

    def stage_ended(self) -> None:
        """Forget the trainings that were told of: they go on no more, and stand still for ever."""
        with self._lock:
            self._heard = {
                name: each for name, each in self._heard.items() if each.progress.unit != _STEPS
            }

    def collect(self) -> Iterator[Metric]:
        """One family a figure, one sample a stage that tells it."""
        with self._lock:
            heard = dict(self._heard)
        steps = {name: each for name, each in heard.items() if each.progress.unit == _STEPS}
        shards = {name: each for name, each in heard.items() if name not in steps}
        yield self._gauges("step", "Optimizer steps that are done.", steps, _done)
        yield self._gauges("steps_planned", "Optimizer steps of the training.", steps, _total)
        yield self._gauges("shards_done", "Parts of the stage that are done.", shards, _done)
        yield self._gauges("shards_total", "Parts of the stage.", shards, _total)
        yield self._gauges(
            "loss", "Training loss of the last logged step.", steps, _figure("train/loss")
        )
        live = {name: each for name, each in steps.items() if _is_fresh(each)}
        yield self._gauges(
            "tokens_per_second", "Tokens of all ranks a second.", live,
            _figure("speed/tokens_per_second"),
        )  # fmt: skip
        yield self._step_seconds(live)
        yield self._waited(steps)
        yield self._gauges(
            "checkpoint_bytes", "Size of the newest stored checkpoint.", steps,
            _figure("checkpoint/bytes"),
        )  # fmt: skip
        yield self._gauges(
            "checkpoint_age_seconds", "Since the newest checkpoint was stored.", steps, _age
        )

    def _gauges(
        self, name: str, purpose: str, heard: Mapping[str, _Heard], value: _Value
    ) -> Metric:
        family = GaugeMetricFamily(f"{PREFIX}{name}", purpose, labels=_LABELS)
        for stage, each in heard.items():
            if (found := value(each.progress)) is not None:
                family.add_metric(self._values(stage, each), found)
        return family

    def _waited(self, heard: Mapping[str, _Heard]) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}data_wait_seconds", "Time rank 0 waited for examples.", labels=_LABELS
        )
        for stage, each in heard.items():
            if (found := each.progress.figures.get("total/data_wait_seconds")) is not None:
                family.add_metric(self._values(stage, each), float(found))
        return family

    def _step_seconds(self, heard: Mapping[str, _Heard]) -> Metric:
        """A summary with quantiles, which prometheus_client writes but does not compute."""
        name = f"{PREFIX}step_seconds"
        family = Metric(name, "Time of a step: the last 500 of this process, and all.", "summary")
        for stage, each in heard.items():
            labels = dict(zip(_LABELS, self._values(stage, each), strict=True))
            figures = each.progress.figures
            for quantile, percentile in _QUANTILES.items():
                if (found := figures.get(f"speed/step_seconds_{percentile}")) is not None:
                    family.add_sample(name, {**labels, "quantile": quantile}, float(found))
            for suffix, figure in (("_sum", "total/step_seconds"), ("_count", "total/steps")):
                if (found := figures.get(figure)) is not None:
                    family.add_sample(name + suffix, labels, float(found))
        return family

    def _values(self, stage: str, heard: _Heard) -> tuple[str, str, str]:
        return self._run, stage, heard.fingerprint


def _done(progress: Progress) -> float:
    return progress.done


def _total(progress: Progress) -> float | None:
    return progress.total or None  # not known yet


def _figure(name: str) -> _Value:
    def value(progress: Progress) -> float | None:
        found = progress.figures.get(name)
        return None if found is None else float(found)

    return value


def _age(progress: Progress) -> float | None:
    stored_at = progress.figures.get("checkpoint/stored_at")
    return None if stored_at is None else max(0.0, time.time() - float(stored_at))


def _is_fresh(heard: _Heard) -> bool:
    return time.monotonic() - heard.at < _FRESH_SECONDS
