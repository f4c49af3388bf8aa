"""One platform of real servers for all tests here; all of it ends with them."""

from collections.abc import Iterator

import pytest

from benchmarks.raylets import raylets
from benchmarks.stack.runs import bertsmith
from benchmarks.stack.whole import missing_servers, started_stack
from tests.integration.busy_stores import busy_store
from tests.platform.whole import NODES, Platform


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Servers, a Ray head with two nodes, the deployments, and a worker of Prefect's."""
    if missing := missing_servers():
        pytest.skip(missing)
    with started_stack() as stack, busy_store(stack.store.url) as busy:
        through = stack.store.environment(busy.url)
        with raylets(**through) as cluster:
            cluster.join_all(*NODES)
            bertsmith(stack, "deploy")
            stack.start_worker("worker", "bertsmith-training", **through, **cluster.of_drivers)
            yield Platform(stack, cluster, busy)
