"""Automations: what Prefect does by itself when something happens, or does not.

One is known by its name. It is made where it is missing; what people changed on its page stays.
"""

import os
from datetime import timedelta
from typing import cast
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound

from flows.services.platform.declaration import Automation, When

NOTIFY_VARIABLE = "BERTSMITH_NOTIFY_URL"
NOTIFY_BLOCK = "bertsmith-notify"
_SUBJECT = "Bertsmith"


def make_automations(client: SyncPrefectClient, declared: tuple[Automation, ...]) -> list[str]:
    """Make those that are missing; sentences for those that cannot be made or are off, and why."""
    notes = []
    block = _notify_block(client)
    for automation in declared:
        if client.read_automations_by_name(automation.name):
            continue
        action: SendNotification | RunDeployment | ChangeFlowRunState
        if automation.notify:
            if block is None:
                notes.append(
                    f"{automation.name!r} is not made: it needs an address to write to; set "
                    f"{NOTIFY_VARIABLE} to a webhook's and deploy again"
                )
                continue
            action = SendNotification.model_validate(
                {"block_document_id": block, "subject": _SUBJECT, "body": automation.notify}
            )
        elif automation.run:
            deployment = _deployment(client, automation.run)
            if deployment is None:
                notes.append(
                    f"{automation.name!r} is not made: it needs a deployment called "
                    f"{automation.run!r}, and there is none"
                )
                continue
            action = RunDeployment.model_validate(
                {"source": "selected", "deployment_id": deployment}
            )
        else:  # not by force: a run that has ended meanwhile stays what it is
            action = ChangeFlowRunState.model_validate(
                {"state": StateType.CRASHED, "name": "Crashed", "message": automation.crash}
            )
        client.create_automation(
            AutomationCore(
                name=automation.name,
                description=automation.description,
                enabled=automation.enabled,
                trigger=_trigger(automation.when),
                actions=[action],
            )
        )
        if not automation.enabled:
            notes.append(f"{automation.name!r} is new and switched off. {automation.description}")
    return notes


def _trigger(when: When) -> EventTrigger:
    related = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{when.tag}"}
    is_silence = when.silent_seconds is not None
    return EventTrigger.model_validate(
        {
            "expect": set(when.expect),
            "after": set(when.after),
            "match": when.match or {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": related if when.tag else {},
            "for_each": {"prefect.resource.id"},
            "posture": Posture.Proactive if is_silence else Posture.Reactive,
            "threshold": 1,
            "within": timedelta(seconds=when.silent_seconds or 0),
        }
    )


def _notify_block(client: SyncPrefectClient) -> UUID | None:
    """The id of the block that knows the address, kept up to date; None where nobody named one.

    The address is a secret, as those of chat rooms are: it goes into the block's secrets, which
    the server encrypts, and nowhere else.
    """
    url = os.environ.get(NOTIFY_VARIABLE, "")
    if url:
        block = CustomWebhookNotificationBlock.model_validate(
            {
                "name": NOTIFY_BLOCK,
                "url": "{{url}}",
                "json_data": {"text": "{{subject}}: {{body}}"},
                "secrets": {"url": url},
                "allow_private_urls": True,  # the operator's own choice, and often the team's
            }
        )
        return cast(UUID, block.save(NOTIFY_BLOCK, overwrite=True))
    kind = CustomWebhookNotificationBlock.get_block_type_slug()
    try:
        return client.read_block_document_by_name(NOTIFY_BLOCK, kind, include_secrets=False).id
    except ObjectNotFound:
        return None


def _deployment(client: SyncPrefectClient, name: str) -> UUID | None:
    """The id of the deployment of this name, of whatever flow."""
    found = client.read_deployments(
        deployment_filter=DeploymentFilter.model_validate({"name": {"any_": [name]}})
    )
    return found[0].id if found else None
