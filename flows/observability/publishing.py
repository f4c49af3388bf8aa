"""Handing a run's figures on: to a file that `bertsmith metrics` serves, and to a port.

Neither is worth a wait or an error of a run: a thread writes, and what fails is said once.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile

from flows.observability.run_figures import RunFigures
from flows.observability.serving import Served, serving
from pipelines.core.errors import UserError

logger = logging.getLogger(__name__)

FOLDER = "metrics"  # of the home: a file for each run while it runs
PORT_VARIABLE = "BERTSMITH_METRICS_PORT"
_WRITE_SECONDS = 5.0
_LAST_SECONDS = 2.0


@contextmanager
def published_figures(run: str, flow_run_id: str) -> Iterator[RunFigures]:
    """Figures that are published for as long as the block lasts.

    In the home ($BERTSMITH_HOME) they lie in a file of their own, and $BERTSMITH_METRICS_PORT
    serves them from this process, for a run that has a container for itself.
    """
    figures = RunFigures(run)
    registry = CollectorRegistry()
    registry.register(figures)
    home = os.environ.get("BERTSMITH_HOME")
    file = _File(Path(home) / FOLDER / f"{flow_run_id}.prom", registry) if home else None
    server = _server(registry)
    try:
        yield figures
    finally:
        if file is not None:
            file.close()
        if server is not None:
            server.close()


def _server(registry: CollectorRegistry) -> Served | None:
    port = os.environ.get(PORT_VARIABLE, "")
    if not port:
        return None
    try:
        return serving(registry, port=int(port))
    except (OSError, ValueError, UserError) as error:
        logger.warning("figures are not served on %s=%s: %s", PORT_VARIABLE, port, error)
        return None


class _File:
    """Written every few seconds by a thread, removed at the end."""

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        self._path = path
        self._registry = registry
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="metrics-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove it, without waiting long for a disk."""
        self._stopping.set()
        self._thread.join(_LAST_SECONDS)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        is_told = False
        while not self._stopping.wait(_WRITE_SECONDS):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_to_textfile(str(self._path), self._registry)
            except OSError as error:
                if not is_told:
                    logger.warning("figures are not written to %s: %s", self._path, error)
                is_told = True
