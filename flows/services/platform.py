"""The set-up of a team's Prefect server: a block, work pools, deployments and automations.

infra/platform.yaml and infra/prefect.yaml declare them by name. Applying them again is safe: what
is missing is created, and what exists stays as people left it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker
from pydantic import Field

from flows.services.deployments import Source, declared_file, deploy_flows
from flows.services.runtime_block import save_runtime
from pipelines.config.errors import UserError, redacted
from pipelines.config.settings import Settings

PROCESS = "process"
NOTIFY_VARIABLE = "BERTSMITH_NOTIFY_URL"
NOTIFY_BLOCK = "bertsmith-notify"


class WorkPool(Settings):
    """Where deployments with one of these tags run."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = Field(min_length=1)
    concurrency_limit: int | None = Field(default=None, ge=1)


class Platform(Settings):
    """What infra/platform.yaml declares."""

    work_pools: tuple[WorkPool, ...]
    automations: tuple[dict[str, Any], ...] = ()  # as Prefect's own, with names in place of ids

    def pool_of(self, tags: list[str]) -> str:
        """The name of the pool for a deployment with these tags. Raises KeyError without one."""
        for pool in self.work_pools:
            if set(pool.tags) & set(tags):
                return pool.name
        raise KeyError(f"no work pool takes a deployment with the tags {tags}")


def read_platform() -> Platform:
    """The platform that comes with Bertsmith."""
    text = declared_file("platform.yaml").read_text(encoding="utf-8")
    return Platform.model_validate(yaml.safe_load(text))


def apply(
    platform: Platform,
    source: Source | None,
    environment: Mapping[str, str],
    pool_type: str = PROCESS,
    template: dict[str, Any] | None = None,
) -> list[str]:
    """Create what is missing on the Prefect server of the environment; returns notes.

    New pools use `template`, or the default of their type. What exists stays, except the
    deployments' entry points and forms, their code's `source` if given, and what `environment` says
    for the block. Raises UserError if the server refuses.
    """
    said = []
    if kept := save_runtime(environment):
        said.append(f"The block bertsmith-runtime holds {', '.join(kept)}.")
    with get_client(sync_client=True) as client:
        made = [
            pool.name for pool in platform.work_pools
            if make_pool(client, pool, pool_type, template)
        ]  # fmt: skip
        said += [f"The work pool {name} is new." for name in made]
        said += deploy_flows(platform.pool_of, source)
        block = _notify_block(client)  # existing automations use it, too
        for automation in platform.automations:
            if not client.read_automations_by_name(automation["name"]):
                said += _make_automation(client, automation, block)
    return [redacted(sentence) for sentence in said]


def deploy_to(work_pool: str) -> list[str]:
    """Deploy all flows to one pool, which runs the code installed here, in this folder."""
    with get_client(sync_client=True) as client:
        make_pool(client, WorkPool(name=work_pool, tags=("bertsmith",)))
    return deploy_flows(lambda tags: work_pool, Source.installed(Path.cwd()))


def make_pool(
    client: SyncPrefectClient,
    pool: WorkPool,
    pool_type: str = PROCESS,
    template: dict[str, Any] | None = None,
) -> bool:
    """Create the pool if it is missing; returns whether it was.

    Pools of another type than `process` need a base job template, given here or later by the
    operator: docs/deploying.md.
    """
    try:
        client.read_work_pool(pool.name)
        return False
    except ObjectNotFound:
        if template is None:
            is_process = pool_type == PROCESS
            template = ProcessWorker.get_default_base_job_template() if is_process else {}
        client.create_work_pool(
            WorkPoolCreate(
                name=pool.name,
                description=pool.description or None,
                type=pool_type,
                base_job_template=template,
                concurrency_limit=pool.concurrency_limit,
            )
        )
        return True


def read_template(path: Path, image: str) -> dict[str, Any]:
    """The base job template in a JSON file; `image` is its default image if it has none.

    Raises UserError if it is not a template.
    """
    try:
        template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        variables = template["variables"]["properties"]
        if template.keys() != {"variables", "job_configuration"}:
            raise KeyError("job_configuration")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not the base job template of a work pool, with variables and "
            f"job_configuration ({error!r}); `prefect work-pool get-default-base-job-template "
            "--type kubernetes` shows one"
        ) from error
    if image and "image" in variables:
        variables["image"].setdefault("default", image)
    return template


def _make_automation(
    client: SyncPrefectClient, automation: dict[str, Any], block: Any
) -> list[str]:
    """Create one that notifies `block`; returns a note if it is not created or switched off."""
    name = automation["name"]
    (action,) = automation["actions"]
    if "block_document_id" in action:
        if block is None:
            return [
                f"{name!r} is not made: set {NOTIFY_VARIABLE} to the address of a webhook and "
                "deploy again"
            ]
        action = {**action, "block_document_id": block}
    if "deployment_id" in action:
        wanted = {"name": {"any_": [action["deployment_id"]]}}
        deployments = client.read_deployments(
            deployment_filter=DeploymentFilter.model_validate(wanted)
        )
        if not deployments:
            return [f"{name!r} is not made: there is no deployment {action['deployment_id']!r}"]
        action = {**action, "deployment_id": deployments[0].id}
    made = AutomationCore.model_validate({**automation, "actions": [action]})
    client.create_automation(made)
    return [] if made.enabled else [f"{name!r} is new and switched off. {made.description}"]


def _notify_block(client: SyncPrefectClient) -> Any:
    """The id of the block with the webhook's address, kept up to date; None without an address.

    The address is a secret: it is stored only in the block's secrets, which the server encrypts.
    """
    url = os.environ.get(NOTIFY_VARIABLE, "")
    if url:
        block = CustomWebhookNotificationBlock.model_validate(
            {
                "name": NOTIFY_BLOCK,
                "url": "{{url}}",
                "json_data": {"text": "{{subject}}: {{body}}"},
                "secrets": {"url": url},
                "allow_private_urls": True,  # the operator chooses the address
            }
        )
        return block.save(NOTIFY_BLOCK, overwrite=True)
    kind = CustomWebhookNotificationBlock.get_block_type_slug()
    try:
        return client.read_block_document_by_name(NOTIFY_BLOCK, kind, include_secrets=False).id
    except ObjectNotFound:
        return None
