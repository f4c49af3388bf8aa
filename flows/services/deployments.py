"""Deploying the flows that infra/prefect.yaml declares.

Of a deployment that exists only the entry point, the form and, if one is named, the source of its
code are updated: schedules, pause, parameters, limit, tags and description stay as people left
them. A deleted deployment is created again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import files
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, DeploymentUpdate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from pipelines.config.errors import UserError

_STEPS = "prefect.deployments.steps"  # the module of Prefect's own steps


@dataclass(frozen=True, slots=True)
class Source:
    """Where runs of a deployment find the code: what a worker does before it starts one."""

    pull_steps: list[dict[str, Any]] = field(default_factory=list)
    job_variables: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def installed(cls, folder: Path | None = None) -> "Source":
        """In the worker's own environment; relative paths start from `folder`."""
        if folder is None:
            return cls()
        return cls([{f"{_STEPS}.set_working_directory": {"directory": str(folder)}}])

    @classmethod
    def image(cls, name: str) -> "Source":
        """In an image, from which a pool of containers starts each run."""
        return cls(job_variables={"image": name})

    @classmethod
    def git(cls, repository: str, reference: str, token_block: str = "") -> "Source":
        """In a branch or tag of a repository that the worker clones for each run.

        `token_block` names Prefect's Secret block with the access token.
        """
        step = {"id": "clone", "repository": repository, "branch": reference}
        if token_block:
            step["access_token"] = f"{{{{ prefect.blocks.secret.{token_block} }}}}"
        return cls([{f"{_STEPS}.git_clone": step}])


def declared_file(name: str) -> Path:
    """The file of this name in infra: in this checkout, else as installed with the package."""
    checkout = Path(__file__).parents[2] / "infra" / name
    if checkout.is_file():
        return checkout
    # The installation knows where: with `pip install --user` it is in no folder of Python's.
    installed = (file for file in files("bertsmith") or [] if file.name == name)
    return Path(str(next(installed).locate())).resolve()


def deploy_flows(pool_of: Callable[[list[str]], str], source: Source | None) -> list[str]:
    """Deploy each declared flow to the pool for its tags; returns notes for the person.

    Without a source, existing deployments keep theirs, and new ones run their worker's installed
    code. Raises UserError if Prefect refuses.
    """
    notes = []
    with get_client(sync_client=True) as client:
        for declared in yaml.safe_load(declared_file("prefect.yaml").read_text())["deployments"]:
            entrypoint = declared["entrypoint"]
            flow: Flow[..., Any] = load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)
            form = parameter_schema(flow).model_dump(exclude_unset=True)
            try:
                existing = client.read_deployment_by_name(f"{flow.name}/{declared['name']}")
            except ObjectNotFound:
                _create(client, declared, flow, form, pool_of(declared["tags"]), source)
            else:
                notes += _bring_up_to_date(client, existing, entrypoint, form, source)
    return notes


def _create(
    client: SyncPrefectClient,
    declared: dict[str, Any],
    flow: Flow[..., Any],
    form: dict[str, Any],
    pool: str,
    source: Source | None,
) -> None:
    source = source or Source.installed()
    schedules = [
        DeploymentScheduleCreate(
            schedule=CronSchedule(cron=each["cron"], timezone=each["timezone"]),
            active=each["active"],
        )
        for each in declared.get("schedules", [])
    ]
    try:
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=declared["name"],
            entrypoint=declared["entrypoint"],
            description=declared["description"],
            tags=declared["tags"],
            work_pool_name=pool,
            parameter_openapi_schema=form,
            enforce_parameter_schema=True,
            schedules=schedules,
            pull_steps=source.pull_steps,
            job_variables=source.job_variables,
        )
    except PrefectHTTPStatusError as error:
        raise UserError(
            f"Prefect refused the deployment {declared['name']!r}: {error.response.text}"
        ) from error


def _bring_up_to_date(
    client: SyncPrefectClient,
    existing: DeploymentResponse,
    entrypoint: str,
    form: dict[str, Any],
    source: Source | None,
) -> list[str]:
    """Update what the code decides; returns a note if saved parameters do not fit it."""
    wanted: dict[str, Any] = {"entrypoint": entrypoint, "parameter_openapi_schema": form}
    if source is not None:  # else it keeps the one it has
        wanted["pull_steps"] = source.pull_steps
        # Of an image; other variables stay.
        others = {k: v for k, v in (existing.job_variables or {}).items() if k != "image"}
        wanted["job_variables"] = {**others, **source.job_variables}
    found = {name: getattr(existing, name) or type(value)() for name, value in wanted.items()}
    if found == wanted:
        return []
    try:
        client.update_deployment(existing.id, DeploymentUpdate(**wanted))
    except PrefectHTTPStatusError as error:
        return [
            f"The parameters that were saved for the deployment {existing.name!r} do not fit "
            f"this version of Bertsmith: correct them on its page, or delete it there and "
            f"deploy again ({error.response.text})"
        ]
    return []
