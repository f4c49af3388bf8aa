"""One platform of real servers for all tests here; all of it ends with them."""

import secrets
import signal
from collections.abc import Iterator

import pytest

from benchmarks.alternating import ROOT
from benchmarks.raylets import raylets
from benchmarks.stack.runs import call
from benchmarks.stack.whole import missing_servers, started_stack
from tests.integration.busy_stores import busy_store
from tests.platform.whole import NODES, Platform


@pytest.fixture(scope="session", autouse=True)
def _ends_with_its_servers() -> Iterator[None]:
    """SIGTERM, as of `timeout`, ends the tests like Ctrl-C: servers have sessions of their own."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Servers, a Ray head with two nodes, the deployments, and a worker of Prefect's."""
    if missing := missing_servers():
        pytest.fail(missing)  # whoever asks for these tests is not helped by none
    with started_stack() as stack, busy_store(stack.store.url) as busy:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        through = {**stack.store.environment(busy.url), **token}
        with raylets(**through) as cluster:
            cluster.join_all(*NODES)
            call(stack, "prefect", "work-pool", "create", "bertsmith", "--type", "process")
            file = ROOT / "infra" / "prefect.yaml"
            call(stack, "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(file))
            stack.start_worker("worker", "bertsmith", **{**through, **cluster.driver_env})
            yield Platform(stack, cluster, busy)
