"""What `bertsmith metrics` serves to Prometheus: the store's size and Prefect's queues.

Threads query store and Prefect, so that requests are answered from memory. A run's metrics come
from Ray: pipelines/run_metrics.py.
"""

import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from pipelines.config.errors import UserError, redacted

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "BERTSMITH_METRICS_TOKEN"
_LOOPBACK = ("127.0.0.1", "localhost")
_STORE_SECONDS = 300.0  # a listing of a large bucket takes minutes and costs money
_PREFECT_SECONDS = 15.0


def store_and_queues(store_url: str) -> CollectorRegistry:
    """Gauges of the store and of Prefect's queues, which threads keep up to date."""
    registry = CollectorRegistry()

    def gauge(name: str, purpose: str, label: str) -> Gauge:
        return Gauge(f"bertsmith_{name}", purpose, [label], registry=registry)

    size = gauge("store_bytes", "Bytes in the store.", "store")
    queued = gauge("runs_queued", "Runs that are due and have not begun.", "deployment")
    # A gauge: runs leave a state and are deleted, and a counter never decreases.
    kept = gauge("runs", "Runs that Prefect keeps.", "state")
    up = gauge("source_up", "Whether store and Prefect answered last.", "source")

    def ask_store() -> None:
        size.labels(redacted(store_url)).set(store_bytes(store_url))

    def ask_prefect() -> None:
        waiting, states = prefect_runs()
        queued.clear()  # of deployments that are gone
        for deployment, count in waiting.items():
            queued.labels(deployment).set(count)
        for state, count in states.items():
            kept.labels(state).set(count)

    keep_asking(ask_store, _STORE_SECONDS, up.labels("store"))
    keep_asking(ask_prefect, _PREFECT_SECONDS, up.labels("prefect"))
    return registry


def keep_asking(ask: Callable[[], None], seconds: float, up: Gauge) -> None:
    """Call `ask` every so often in a thread; `up` says whether the last call succeeded."""

    def run() -> None:
        was_up = True
        while True:
            try:
                ask()
                was_up = True
            # After any error the last answer stays, and the other metrics go on.
            except Exception as error:  # noqa: BLE001
                if was_up:
                    logger.warning("figures are not kept up to date: %s", redacted(str(error)))
                was_up = False
            up.set(was_up)
            time.sleep(seconds)

    threading.Thread(target=run, daemon=True).start()


def store_bytes(store_url: str) -> int:
    """The size of the whole store, unfinished builds included."""
    from pipelines.artifacts import ArtifactStore

    store = ArtifactStore(store_url, is_patient=False)
    is_there = store.filesystem.exists(store.root)
    files = store.filesystem.find(store.root, detail=True) if is_there else {}
    return sum(each["size"] for each in files.values())


def prefect_runs() -> tuple[dict[str, int], dict[str, int]]:
    """Numbers of runs that are due and wait, by deployment, and of all runs, by state."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
    from prefect.client.schemas.objects import StateType

    waiting = {"type": {"any_": ["SCHEDULED", "PENDING"]}, "name": {"not_any_": ["Paused"]}}
    due = FlowRunFilter.model_validate(
        {"state": waiting, "expected_start_time": {"before_": datetime.now(UTC)}}
    )
    queued, kept = {}, {}
    with get_client(sync_client=True) as client:
        for deployment in client.read_deployments():
            of_it = DeploymentFilter.model_validate({"id": {"any_": [deployment.id]}})
            queued[deployment.name] = client.count_flow_runs(
                flow_run_filter=due, deployment_filter=of_it
            )
        for state in StateType:
            in_it = FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}})
            kept[state.value.lower()] = client.count_flow_runs(flow_run_filter=in_it)
    return queued, kept


class _Quiet(WSGIRequestHandler):
    def log_message(self, *arguments: object) -> None:
        """Log no requests."""


def metrics_server(
    registry: CollectorRegistry, *, port: int, host: str = "127.0.0.1"
) -> WSGIServer:
    """A server of `registry`, which the caller starts; port 0 takes a free one.

    With $BERTSMITH_METRICS_TOKEN set, requests need it as `Authorization: Bearer …`. Raises
    UserError for a host that other machines can reach without a token, and OSError for a used port.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if host not in _LOOPBACK and not token:
        raise UserError(
            f"serving figures on {host} requires a token; set {TOKEN_VARIABLE}, or listen on "
            "127.0.0.1"
        )
    metrics = make_wsgi_app(registry)

    def guarded(request: dict[str, Any], respond: Any) -> Iterable[bytes]:
        brought = request.get("HTTP_AUTHORIZATION", "").encode()
        if token and not hmac.compare_digest(brought, f"Bearer {token}".encode()):
            respond("401 Unauthorized", [("Content-Type", "text/plain")])
            return [b"a token is required\n"]
        return metrics(request, respond)

    return make_server(host, port, guarded, server_class=ThreadingWSGIServer, handler_class=_Quiet)
