"""Commands that start and stop the servers."""

from typing import Annotated

import typer

from flows.cli.options import Home
from flows.environment import home_folder, set_defaults

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(up)
    app.command()(down)


def up(home: Home = None, prefect_port: PrefectPort = 4200, mlflow_port: MlflowPort = 5000) -> None:
    """Start the Prefect server, the MLflow server and a worker, and deploy the flows.

    They listen on 127.0.0.1 only and run until `bertsmith down`.

    Example: bertsmith up --prefect-port 4300 --mlflow-port 5300
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.services.lifecycle import start_services

    services = start_services(folder, prefect_port=prefect_port, mlflow_port=mlflow_port, say=print)
    print(
        f"\n  Prefect   {services.prefect_url}   flows, runs, deployments"
        f"\n  MLflow    {services.mlflow_url}/#/models   models and training runs"
        f"\n  logs      {folder / 'logs'}"
        "\n\nTrigger the whole chain from this page or from a shell:"
        f"\n\n  export PREFECT_API_URL={services.prefect_api_url}"
        "\n  prefect deployment run 'end-to-end/demo' --watch"
        "\n\n`bertsmith` commands for this home use both servers from now on; "
        "`bertsmith down` stops them."
    )


def down(home: Home = None) -> None:
    """Stop exactly what `bertsmith up` started.

    Example: bertsmith down
    """
    from flows.services.lifecycle import stop_services

    folder = home_folder(home)
    stopped = stop_services(folder)
    if not stopped:
        print(f"Nothing is running for {folder}.")
    for service in stopped:
        print(f"Stopped the {service.name} (process {service.pid}).")
