"""The process of `bertsmith up` that runs the flows: those that are scheduled or started by hand.

python -m flows.local.served /path/of/the/file/that/says/it/is/ready
"""

import asyncio
import sys
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.runner import Runner
from prefect.schedules import Cron, Schedule
from prefect.states import Crashed

from flows.end_to_end import end_to_end
from flows.predict import predict
from flows.promote import promote

_POLL_SECONDS = 2.0
_OPEN = (StateType.RUNNING, StateType.PENDING, StateType.CANCELLING)
_NIGHTLY = Cron("0 2 * * *", timezone="UTC", active=False)
DEPLOYMENTS: tuple[tuple[Flow[..., Any], str, list[Schedule]], ...] = (
    (end_to_end, "demo", [_NIGHTLY]),
    (predict, "predict", []),
    (promote, "promote", []),
)


def serve(ready: Path) -> None:
    """Serve the flows until this process is stopped; `ready` is made once they can be started."""
    runner = Runner(name="bertsmith", query_seconds=_POLL_SECONDS, pause_on_shutdown=False)
    with get_client(sync_client=True) as client:
        end_lost_runs(client)
        known = {deployment.name: deployment for deployment in client.read_deployments()}
    for flow, name, schedules in DEPLOYMENTS:
        deployment = flow.to_deployment(
            name,
            entrypoint_type=EntrypointType.MODULE_PATH,
            tags=["bertsmith"],
            **(_as_people_left_it(known[name]) if name in known else {"schedules": schedules}),
        )
        assert isinstance(deployment, RunnerDeployment)  # outside of an event loop
        deployment_id = cast(UUID, runner.add_deployment(deployment))
        with get_client(sync_client=True) as client:
            client.update_deployment(deployment_id, closed_parameters(flow))
    ready.touch()
    asyncio.run(runner.start())


def closed_parameters(flow: Flow[..., Any]) -> DeploymentUpdate:
    """What makes the server refuse a parameter that the flow does not have."""
    schema = {**flow.parameters.model_dump_for_openapi(), "additionalProperties": False}
    return DeploymentUpdate(parameter_openapi_schema=schema)


def _as_people_left_it(deployment: DeploymentResponse) -> dict[str, Any]:
    """What a deployment's page changes: serving it again would reset it."""
    schedules = [
        DeploymentScheduleCreate(
            schedule=each.schedule, active=each.active, parameters=each.parameters, slug=each.slug
        )
        for each in deployment.schedules
    ]
    return {"schedules": schedules, "paused": deployment.paused}


def end_lost_runs(client: SyncPrefectClient) -> None:
    """Set runs to Crashed that a process before this one served and did not end.

    Only this process serves deployments of the home's server, and its last one ended with all
    that it had started. Runs that a person started in a shell have no deployment.
    """
    is_open = FlowRunFilter.model_validate({"state": {"type": {"any_": list(_OPEN)}}})
    for run in client.read_flow_runs(flow_run_filter=is_open):
        if run.deployment_id is not None:
            message = "The process that ran it ended. Start it again to resume it."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
