"""Putting all of it on the Prefect server of the environment, once or again."""

from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import get_client

from flows.services.deployments import Source, deploy_flows
from flows.services.platform.automations import make_automations
from flows.services.platform.declaration import Platform
from flows.services.platform.place_block import save_place
from flows.services.platform.pools import PROCESS, make_pool
from pipelines.core.redaction import redacted


def apply(
    platform: Platform,
    source: Source | None,
    environment: Mapping[str, str],
    pool_type: str = PROCESS,
    template: dict[str, Any] | None = None,
) -> list[str]:
    """Make what is missing of block, pools, deployments and automations; sentences on each.

    New pools start runs as `template` says, or as is usual for their type. What is there stays as
    people left it, but for the deployments' code and what `environment` says of the place; where
    the code comes from stays as well without a `source`. Raises UserError where the server refuses.
    """
    said = []
    if kept := save_place(environment):
        said.append(f"The block bertsmith-place holds {', '.join(kept)}.")
    with get_client(sync_client=True) as client:
        made = [
            pool.name for pool in platform.work_pools
            if make_pool(client, pool, pool_type, template)
        ]  # fmt: skip
        said += [f"The work pool {name} is new." for name in made]
        said += deploy_flows(platform.pool_of, source)
        said += make_automations(client, platform.automations)
    return [redacted(sentence) for sentence in said]
