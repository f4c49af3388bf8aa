"""Deploying the flows. What runs follows the installed code; all else is the person's.

Once a deployment exists, its schedules, pause, parameters, limit, tags and description are what
its page says: only its entry point, its form and, where one is named, the source of its code are
brought up to date. One that was deleted is made anew, as infra/prefect.yaml declares it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.services.declared_files import declared_file
from pipelines.core.errors import UserError

if TYPE_CHECKING:  # importing Prefect takes seconds that `bertsmith --help` need not spend
    from prefect.client.orchestration import SyncPrefectClient

_FILE = "prefect.yaml"
_STEPS = "prefect.deployments.steps"  # where Prefect's own steps are


@dataclass(frozen=True, slots=True)
class Source:
    """Where runs of a deployment find the code: what a worker does before it begins one."""

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
        """In an image, which a pool of containers starts for each run."""
        return cls(job_variables={"image": name})

    @classmethod
    def git(cls, repository: str, reference: str, token_block: str = "") -> "Source":
        """In a branch or tag of a repository that the worker clones for each run.

        `token_block` names the Secret block of Prefect's with what lets it in.
        """
        step = {"id": "clone", "repository": repository, "branch": reference}
        if token_block:
            step["access_token"] = f"{{{{ prefect.blocks.secret.{token_block} }}}}"
        return cls([{f"{_STEPS}.git_clone": step}])


def deployments_file() -> Path:
    """The deployments: of this checkout, else those that were installed with the package."""
    return declared_file(_FILE)


def deploy(work_pool: str) -> list[str]:
    """Deploy to one pool of the Prefect API of the environment; returns sentences for the person.

    Raises UserError where Prefect refuses.
    """
    from prefect.client.orchestration import get_client

    from flows.services.platform.declaration import WorkPool
    from flows.services.platform.pools import make_pool

    with get_client(sync_client=True) as client:
        make_pool(client, WorkPool(name=work_pool, tags=("bertsmith",)))
    return deploy_flows(lambda tags: work_pool, Source.installed(Path.cwd()))


def deploy_flows(pool_of: Callable[[list[str]], str], source: Source | None) -> list[str]:
    """Deploy each declared flow to the pool for its tags; returns sentences for the person.

    Without a source, deployments that are there keep theirs, and new ones run what their worker has
    installed. Raises UserError where Prefect refuses.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

    notes = []
    with get_client(sync_client=True) as client:
        for declared in yaml.safe_load(deployments_file().read_text())["deployments"]:
            flow = _flow_of(declared["entrypoint"])
            try:
                existing = client.read_deployment_by_name(f"{flow.name}/{declared['name']}")
            except ObjectNotFound:
                try:
                    pool = pool_of(declared["tags"])
                    _create(client, declared, flow, pool, source or Source.installed())
                except PrefectHTTPStatusError as error:
                    raise UserError(
                        f"Prefect must take the deployment {declared['name']!r}, but it said: "
                        f"{error.response.text}"
                    ) from error
            else:
                if note := _bring_up_to_date(client, existing, declared, flow, source):
                    notes.append(note)
    return notes


def _flow_of(entrypoint: str) -> Any:
    from prefect.flows import load_flow_from_entrypoint

    return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)


def _create(
    client: "SyncPrefectClient", declared: dict[str, Any], flow: Any, pool: str, source: Source
) -> None:
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule

    limit = declared.get("concurrency_limit") or {}
    strategy = limit.get("collision_strategy")
    client.create_deployment(
        flow_id=client.create_flow(flow),
        name=declared["name"],
        entrypoint=declared["entrypoint"],
        description=declared["description"],
        tags=declared["tags"],
        work_pool_name=pool,
        parameter_openapi_schema=_schema(flow),
        enforce_parameter_schema=True,
        concurrency_limit=limit.get("limit"),
        concurrency_options=(
            ConcurrencyOptions.model_validate({"collision_strategy": strategy})
            if strategy
            else None
        ),
        schedules=[
            DeploymentScheduleCreate(
                schedule=CronSchedule(cron=each["cron"], timezone=each["timezone"]),
                active=each["active"],
            )
            for each in declared.get("schedules", [])
        ],
        pull_steps=source.pull_steps,
        job_variables=source.job_variables,
    )


def _schema(flow: Any) -> dict[str, Any]:
    """The form of its parameters."""
    from prefect.utilities.callables import parameter_schema

    return parameter_schema(flow).model_dump(exclude_unset=True)


def _bring_up_to_date(
    client: "SyncPrefectClient",
    existing: Any,
    declared: dict[str, Any],
    flow: Any,
    source: Source | None,
) -> str:
    """Update what the code decides; a sentence where the person's parameters do not fit it."""
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import PrefectHTTPStatusError

    wanted = {
        "entrypoint": declared["entrypoint"],
        "parameter_openapi_schema": _schema(flow),
    }
    if source is not None:  # else nobody named another place than the one it has
        wanted["pull_steps"] = source.pull_steps
    if source is not None and source.job_variables:  # an image; other variables are the person's
        wanted["job_variables"] = {**existing.job_variables, **source.job_variables}
    found = {name: getattr(existing, name) or type(value)() for name, value in wanted.items()}
    if found == wanted:
        return ""
    try:
        client.update_deployment(existing.id, DeploymentUpdate(**wanted))
    except PrefectHTTPStatusError as error:
        return (
            f"The parameters that were saved for the deployment {existing.name!r} do not fit "
            f"this version of Bertsmith: correct them on its page, or delete it there and "
            f"deploy again ({error.response.text})"
        )
    return ""


def main() -> None:
    """Deploy to the work pool that is named; a line for each thing a person should know."""
    try:
        for note in deploy(sys.argv[1]):
            sys.stdout.write(f"{note}\n")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
