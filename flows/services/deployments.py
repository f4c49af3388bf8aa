"""Deploying the flows. What runs follows the installed code; all else is the person's.

Once a deployment exists, its schedules, pause, parameters, limit, tags and description are what
its page says: only its entry point, its form and the folder that relative paths start from are
brought up to date. One that was deleted is made anew, as infra/prefect.yaml declares it.
"""

import subprocess
import sys
from importlib.metadata import files
from pathlib import Path
from typing import Any

import yaml

from pipelines.core.errors import UserError

_FILE = "prefect.yaml"
_WORKING_DIRECTORY = "prefect.deployments.steps.set_working_directory"  # as `deploy` names it


def deployments_file() -> Path:
    """The deployments: of this checkout, else those that were installed with the package."""
    checkout = Path(__file__).parents[2] / "infra" / _FILE
    if checkout.is_file():
        return checkout
    # Asked of the installation itself: with `pip install --user` it lies in no folder of Python's.
    installed = (file for file in files("bertsmith") or [] if file.name == _FILE)
    return Path(str(next(installed).locate())).resolve()


def deploy(work_pool: str) -> list[str]:
    """Deploy to the Prefect API of the environment; returns sentences for the person.

    Raises UserError where Prefect refuses.
    """
    _make_work_pool(work_pool)
    missing, notes = [], []
    for declared in yaml.safe_load(deployments_file().read_text())["deployments"]:
        existing = _existing(declared)
        if existing is None:
            missing.append(declared["name"])
        elif note := _bring_up_to_date(existing, declared["entrypoint"]):
            notes.append(note)
    if missing:
        names = [argument for name in missing for argument in ("--name", name)]
        _run_prefect(["deploy", *names, "--prefect-file", str(deployments_file())])
    return notes


def _make_work_pool(name: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            _run_prefect(["work-pool", "create", name, "--type", "process"])


def _flow_of(entrypoint: str) -> Any:
    from prefect.flows import load_flow_from_entrypoint

    return load_flow_from_entrypoint(entrypoint, use_placeholder_flow=False)


def _existing(declared: dict[str, Any]) -> Any:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    flow_name = _flow_of(declared["entrypoint"]).name
    with get_client(sync_client=True) as client:
        try:
            return client.read_deployment_by_name(f"{flow_name}/{declared['name']}")
        except ObjectNotFound:
            return None


def _bring_up_to_date(existing: Any, entrypoint: str) -> str:
    """Update what the code decides; a sentence where the person's parameters do not fit it."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(_flow_of(entrypoint)).model_dump(exclude_unset=True)
    here = [{_WORKING_DIRECTORY: {"directory": str(Path.cwd())}}]
    found = existing.entrypoint, existing.parameter_openapi_schema, existing.pull_steps
    if found == (entrypoint, schema, here):
        return ""
    update = DeploymentUpdate(
        entrypoint=entrypoint, parameter_openapi_schema=schema, pull_steps=here
    )
    with get_client(sync_client=True) as client:
        try:
            client.update_deployment(existing.id, update)
        except PrefectHTTPStatusError as error:
            return (
                f"The parameters that were saved for the deployment {existing.name!r} do not fit "
                f"this version of Bertsmith: correct them on its page, or delete it there and "
                f"type `bertsmith up` again ({error.response.text})"
            )
    return ""


def _run_prefect(arguments: list[str]) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode != 0:
        said = (completed.stderr or completed.stdout).strip()
        raise UserError(f"`prefect {' '.join(arguments)}` must succeed, but it said:\n{said}")


def main() -> None:
    """Deploy to the work pool that is named; a line for each thing a person should know."""
    try:
        for note in deploy(sys.argv[1]):
            sys.stdout.write(f"{note}\n")
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
