"""What `bertsmith metrics` serves to Prometheus: the store's size and Prefect's queues.

Threads ask store and Prefect: a request of Prometheus is answered from memory. The figures of a
run come from Ray: pipelines/core/run_metrics.py.
"""

import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.core.errors import UserError
from pipelines.core.redaction import redacted

logger = logging.getLogger(__name__)

HOST_VARIABLE = "BERTSMITH_METRICS_HOST"
TOKEN_VARIABLE = "BERTSMITH_METRICS_TOKEN"
_LOOPBACK = ("127.0.0.1", "localhost")
_STORE_SECONDS = 300.0  # a listing of a large bucket takes minutes and costs money
_PREFECT_SECONDS = 15.0

Ask = Callable[[], list[Metric]]


class Sources(Collector):
    """The latest answers of sources that threads ask again and again.

    Whether the last question was answered is a figure as well: an old answer looks like a new one.
    """

    def __init__(self, sources: Mapping[str, tuple[Ask, float]]) -> None:
        self._answers: dict[str, list[Metric]] = {name: [] for name in sources}
        self._is_up = dict.fromkeys(sources, False)
        for name, (ask, seconds) in sources.items():
            threading.Thread(
                target=self._keep_asking, args=(name, ask, seconds), daemon=True
            ).start()

    def collect(self) -> Iterator[Metric]:
        """All latest answers, and who answered."""
        up = GaugeMetricFamily(
            "bertsmith_source_up", "Whether store and Prefect answered last.", labels=["source"]
        )
        for name, families in self._answers.items():
            yield from families
            up.add_metric([name], float(self._is_up[name]))
        yield up

    def _keep_asking(self, name: str, ask: Ask, seconds: float) -> None:
        while True:
            try:
                self._answers[name] = ask()
                self._is_up[name] = True
            # Whatever it is, the other figures go on.
            except Exception as error:  # noqa: BLE001
                if self._is_up[name]:
                    logger.warning("%s does not answer: %s", name, redacted(str(error)))
                self._is_up[name] = False
            time.sleep(seconds)


def store_metrics(store_url: str) -> list[Metric]:
    """Bytes of the whole store, unfinished builds included."""
    from pipelines.artifacts import ArtifactStore

    store = ArtifactStore(store_url, is_patient=False)
    is_there = store.filesystem.exists(store.root)
    files = store.filesystem.find(store.root, detail=True) if is_there else {}
    size = GaugeMetricFamily("bertsmith_store_bytes", "Bytes in the store.", labels=["store"])
    size.add_metric([redacted(store_url)], float(sum(each["size"] for each in files.values())))
    return [size]


def prefect_metrics() -> list[Metric]:
    """Runs that are due and wait, by deployment, and all runs by state."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.objects import StateType

    queued = GaugeMetricFamily(
        "bertsmith_runs_queued", "Runs that are due and have not begun.", labels=["deployment"]
    )
    # A gauge: runs leave a state and are deleted, which a counter would take for a restart.
    kept = GaugeMetricFamily("bertsmith_runs", "Runs that Prefect keeps.", labels=["state"])
    waiting = {"type": {"any_": ["SCHEDULED", "PENDING"]}, "name": {"not_any_": ["Paused"]}}
    due = FlowRunFilter.model_validate(
        {"state": waiting, "expected_start_time": {"before_": datetime.now(UTC)}}
    )
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            of_it = DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}})
            count = client.count_flow_runs(flow_run_filter=due, deployment_filter=of_it)
            queued.add_metric([deployment.name], count)
        for state in StateType:
            in_it = FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}})
            kept.add_metric([state.value.lower()], client.count_flow_runs(flow_run_filter=in_it))
    return [queued, kept]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Say nothing of each request."""


def metrics_server(collector: Collector, *, port: int, host: str | None = None) -> WSGIServer:
    """A server of `collector`, which the caller lets serve; port 0 takes a free one.

    It listens on `host`, else on $BERTSMITH_METRICS_HOST, else on the loopback. Where
    $BERTSMITH_METRICS_TOKEN is set, requests need it as `Authorization: Bearer …`. Raises UserError
    where other machines could ask and no token is set, and OSError where the port is taken.
    """
    host = host or os.environ.get(HOST_VARIABLE, "127.0.0.1")
    token = os.environ.get(TOKEN_VARIABLE, "")
    if host not in _LOOPBACK and not token:
        raise UserError(
            f"serving figures on {host} requires a token; set {TOKEN_VARIABLE}, or listen on "
            "127.0.0.1"
        )
    registry = CollectorRegistry()
    registry.register(collector)
    metrics = make_wsgi_app(registry)

    def guarded(request: dict[str, Any], respond: Any) -> Iterable[bytes]:
        brought = request.get("HTTP_AUTHORIZATION", "").encode()
        if token and not hmac.compare_digest(brought, f"Bearer {token}".encode()):
            respond("401 Unauthorized", [("Content-Type", "text/plain")])
            return [b"a token is required\n"]
        return metrics(request, respond)

    return make_server(host, port, guarded, server_class=_Server, handler_class=_Quiet)


def store_and_queues(store_url: str) -> Sources:
    """What `bertsmith metrics` serves."""
    return Sources(
        {
            "store": (lambda: store_metrics(store_url), _STORE_SECONDS),
            "prefect": (prefect_metrics, _PREFECT_SECONDS),
        }
    )
