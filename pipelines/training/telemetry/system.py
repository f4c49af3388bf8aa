"""The machine of a training run's first rank, as MLflow shows it.

MLflow's own monitors measure; their figures take the way of all others, so that a tracker that is
away stops nothing.
"""

import logging
import threading
from importlib.util import find_spec

import torch
from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

from pipelines.training.telemetry.metrics import MetricLog

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
