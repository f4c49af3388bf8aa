"""Speed and resource use of a training run. None of it is part of its curve.

MLflow's own monitors measure the machine; `MetricLog` sends their figures like all others, so an
unreachable tracker stops nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.util import find_spec

import numpy as np
import psutil
import torch
from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

from bert_core.batch import Batch
from bert_core.model.trainable import TrainableModel
from bert_core.training.loop import MicroBatches
from bert_core.training.step_operations import batch_operations
from pipelines.config.versions import peak_resident_bytes
from pipelines.training.metrics import MetricLog

_WINDOW_STEPS = 500  # whose times the percentiles are of
_PERCENTILES = (50, 95, 99)


class Speed:
    """A stopwatch beside the steps of one rank.

    `matrix_rate` is in operations a second, measured on this rank while the others measured
    theirs; ranks are taken to be alike.
    """

    def __init__(self, num_steps: int, *, num_ranks: int, matrix_rate: float) -> None:
        self._num_steps = num_steps
        self._matrix_rate = matrix_rate * num_ranks
        self._step_seconds: deque[float] = deque(maxlen=_WINDOW_STEPS)
        # The first step warms up: the time left is estimated from its end on.
        self._first: tuple[int, float] | None = None
        # Of this rank since the last point: what it waited for, computed, and saw of the tokens.
        self._seconds = self._waited = self._operations = 0.0
        self._own_tokens = 0
        self._tokens_before = 0.0
        self._all_seconds = self._all_waited = 0.0  # of this process
        self._num_taken = 0

    def timed(self, model: TrainableModel, micro_batches: MicroBatches) -> MicroBatches:
        """The same micro-batches, with the waiting time and the operations counted."""

        def timed_batches(step: int) -> Iterator[tuple[int, Batch]]:
            started = time.perf_counter()
            batches: Sequence[tuple[int, Batch]] = list(micro_batches(step))
            waited = time.perf_counter() - started
            self._waited += waited
            self._all_waited += waited
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
        self._all_seconds += seconds
        self._num_taken += 1

    def seconds_left(self, step: int) -> float | None:
        """Until the last step, with evaluations and checkpoints; None while it is not known."""
        if self._first is None or step <= self._first[0]:
            return None
        begun, at = self._first
        return (self._num_steps - step) * (time.monotonic() - at) / (step - begun)

    def totals(self) -> dict[str, float]:
        """Counters of this process, from which a monitor can compute rates."""
        return {
            "total/steps": float(self._num_taken),
            "total/step_seconds": self._all_seconds,
            "total/data_wait_seconds": self._all_waited,
        }

    def figures(self, step: int, num_tokens: float, training_seconds: float) -> dict[str, float]:
        """Figures after `step` steps, since the last call and over all.

        `num_tokens` of all ranks went into `training_seconds`, of this run and those before it.
        """
        taken = np.percentile(np.array(self._step_seconds), _PERCENTILES)
        figures = {"speed/tokens_per_second_overall": num_tokens / training_seconds}
        if self._seconds:
            tokens = num_tokens - self._tokens_before
            figures["speed/tokens_per_second"] = tokens / self._seconds
            if self._own_tokens:
                operations = self._operations / self._own_tokens * tokens
                figures["speed/utilization"] = operations / self._seconds / self._matrix_rate
            figures["speed/data_wait"] = self._waited / self._seconds
        figures |= {
            f"speed/step_seconds_p{percent}": float(seconds)
            for percent, seconds in zip(_PERCENTILES, taken, strict=True)
        }
        left = self.seconds_left(step)
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


logger = logging.getLogger(__name__)

_SAMPLE_SECONDS = 10.0
_PATIENCE_SECONDS = 5.0  # a driver or a lost disk may never answer: no training run waits for that


class SystemMetrics:
    """Samples the machine from a thread of its own, beside the step that `step` names."""

    def __init__(self, metrics: MetricLog, *, sample_seconds: float = _SAMPLE_SECONDS) -> None:
        self.step = 0
        self._metrics = metrics
        self._sample_seconds = sample_seconds
        self._monitors = _monitors()
        self._silent: set[BaseMetricsMonitor] = set()  # that could not measure, and were named
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more samples."""
        self._stopping.set()
        self._thread.join(_PATIENCE_SECONDS)

    def _run(self) -> None:
        self._sample()  # load is measured since the sample before, which this is
        while not self._stopping.wait(self._sample_seconds):
            self._metrics.add(self.step, self._sample())

    def _sample(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        for monitor in self._monitors:
            try:
                monitor.collect_metrics()
                measured = monitor.aggregate_metrics()
            # Whatever it is: the other monitors measure, and this one may again.
            except Exception as error:  # noqa: BLE001
                if monitor not in self._silent:
                    self._silent.add(monitor)
                    logger.warning("%s does not measure: %s", type(monitor).__name__, error)
                continue
            finally:
                monitor.clear_metrics()
            figures |= {f"system/{name}": value for name, value in measured.items()}
        return figures


def _monitors() -> list[BaseMetricsMonitor]:
    kinds: list[type[BaseMetricsMonitor]] = [CPUMonitor, DiskMonitor, NetworkMonitor]
    if torch.cuda.is_available() and _has_nvidia_library():
        kinds.append(GPUMonitor)
    monitors: list[BaseMetricsMonitor] = []
    for kind in kinds:
        try:
            monitors.append(kind())
        # A container's GPU may compute and yet not be asked. No figure is worth a training run.
        except Exception as error:  # noqa: BLE001
            logger.warning("%s is left out: %s", kind.__name__, error)
    return monitors


def _has_nvidia_library() -> bool:
    """MLflow asks a GPU through a package that is not everywhere."""
    return find_spec("pynvml") is not None
