"""What `bertsmith metrics` serves: the figures of this home's runs, its store's size, the queues.

Runs leave their figures in files of the home. Store and Prefect are asked by threads every so
often: a request of Prometheus is answered from memory, whatever they do.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from flows.observability.run_figures import PREFIX
from pipelines.core.redaction import redacted

logger = logging.getLogger(__name__)

_STALE_SECONDS = 60.0  # a run writes every five; what is older was left by one that was killed
_STORE_SECONDS = 300.0  # a listing of a large bucket takes minutes and costs money
_PREFECT_SECONDS = 15.0

Families = list[Metric]


class RunFiles(Collector):
    """The figures that runs of this home left in the last minute, as one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Families of all runs: each appears once, with every run's samples."""
        merged: dict[str, Metric] = {}
        for path in sorted(self._folder.glob("*.prom")):
            try:
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    continue
                text = path.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue  # its run ended just now
            for family in text_string_to_metric_families(text):
                known = merged.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from merged.values()


class Asked(Collector):
    """Figures that somebody else is asked for, by a thread; the newest answer is served.

    Whether the last question was answered is a figure as well: one that is old looks like now.
    """

    def __init__(self, source: str, ask: Callable[[], Families], seconds: float) -> None:
        self._source = source
        self._ask = ask
        self._seconds = seconds
        self._families: Families = []
        self._has_answered = False
        self._thread = threading.Thread(target=self._run, name=f"asks-{source}", daemon=True)
        self._thread.start()

    def collect(self) -> Iterator[Metric]:
        """What was answered last."""
        yield from self._families

    def has_answered(self) -> bool:
        """Whether the last question was answered."""
        return self._has_answered

    def _run(self) -> None:
        while True:
            try:
                self._families = self._ask()
                self._has_answered = True
            # Whatever it is: it costs these figures, and the others go on.
            except Exception as error:  # noqa: BLE001
                if self._has_answered:
                    logger.warning("%s does not answer: %s", self._source, redacted(str(error)))
                self._has_answered = False
            time.sleep(self._seconds)


class Answering(Collector):
    """Which of those that are asked answered last time."""

    def __init__(self, asked: Mapping[str, Asked]) -> None:
        self._asked = asked

    def collect(self) -> Iterator[Metric]:
        """One sample a source."""
        family = GaugeMetricFamily(
            f"{PREFIX}source_up", "Whether store and Prefect answered last time.", labels=["source"]
        )
        for name, each in self._asked.items():
            family.add_metric([name], float(each.has_answered()))
        yield family


def store_families(store_url: str) -> Families:
    """Bytes of the whole store, attempts and leftovers included."""
    from pipelines.artifacts import ArtifactStore

    store = ArtifactStore(store_url, is_patient=False)
    is_there = store.filesystem.exists(store.root)
    files = store.filesystem.find(store.root, detail=True) if is_there else {}
    family = GaugeMetricFamily(f"{PREFIX}store_bytes", "Bytes in the store.", labels=["store"])
    family.add_metric([redacted(store_url)], float(sum(each["size"] for each in files.values())))
    return [family]


def prefect_families() -> Families:
    """Runs that are due and wait, by deployment, and all runs by state."""
    from flows.observability.prefect_runs import queued_runs, runs_by_state

    queued = GaugeMetricFamily(
        f"{PREFIX}runs_queued", "Runs that are due and have not begun.", labels=["deployment"]
    )
    for deployment, count in queued_runs().items():
        queued.add_metric([deployment], count)
    # Runs leave a state, and are deleted: a counter would take each for a restart from nothing.
    kept = GaugeMetricFamily(f"{PREFIX}runs", "Runs that Prefect keeps.", labels=["state"])
    for state, count in runs_by_state().items():
        kept.add_metric([state], count)
    return [queued, kept]


def exporter(home: Path, store_url: str) -> CollectorRegistry:
    """All of it, for a server to serve."""
    from flows.observability.publishing import FOLDER

    registry = CollectorRegistry()
    asked = {
        "store": Asked("store", lambda: store_families(store_url), _STORE_SECONDS),
        "prefect": Asked("prefect", prefect_families, _PREFECT_SECONDS),
    }
    for collector in (RunFiles(home / FOLDER), *asked.values(), Answering(asked)):
        registry.register(collector)
    return registry
