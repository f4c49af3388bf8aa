"""Commands for the operators of a team's platform."""

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.environment import home_folder, set_defaults
from pipelines.config.errors import UserError


def deploy(
    pool_type: Annotated[
        str, typer.Option(help="Type of new work pools: process or kubernetes.")
    ] = "process",
    job_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Base job template of new work pools, as JSON."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Image that runs start in, for container pools.")
    ] = None,
    git: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Repository that workers clone for each run."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Branch or tag of --git. [default: main]", show_default=False),
    ] = None,
    token_block: Annotated[
        str, typer.Option(help="Prefect secret block with the token for --git.")
    ] = "",
    installed: Annotated[
        bool,
        typer.Option("--installed", help="Runs use their worker's installed code (the default)."),
    ] = False,
) -> None:
    """Set up work pools, deployments and automations on a team's Prefect server.

    It is the server of PREFECT_API_URL. Safe to repeat: people's changes stay, what is missing is
    created, and entry points, forms and what the environment says of store, tracker and cluster
    (BERTSMITH_STORE, MLFLOW_TRACKING_URI, RAY_ADDRESS, AWS_…) are updated. Where runs take their
    code from changes only with --git, --image or --installed.

    Example: bertsmith deploy --git https://example.org/team/bertsmith --reference v0.1.0
    """
    if (image is not None) + (git is not None) + installed > 1:
        raise UserError("--image, --git and --installed exclude each other; choose one")
    if git is None and (reference is not None or token_block):
        raise UserError("--reference and --token-block belong to --git; add it")
    # Servers of `bertsmith up` would be named to the team otherwise.
    environment = dict(os.environ)
    set_defaults(home_folder(None))
    if not environment.get("PREFECT_API_URL"):
        raise UserError(
            "PREFECT_API_URL is not set: it names the server to deploy to; `bertsmith up` deploys "
            "to a server of its own"
        )
    from flows.services.deployments import Source
    from flows.services.doctor_servers import require_prefect
    from flows.services.platform import apply, read_platform, read_template

    require_prefect()

    source = Source.installed() if installed else None
    if image:
        source = Source.image(image)
    elif git:
        source = Source.git(git, reference or "main", token_block)
    template = None if job_template is None else read_template(job_template, image or "")
    for sentence in apply(read_platform(), source, environment, pool_type, template):
        print(sentence)
    print("Everything declared in infra/platform.yaml and infra/prefect.yaml is in place.")
