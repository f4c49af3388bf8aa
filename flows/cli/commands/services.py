"""Commands that start and stop the servers."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import Home
from flows.environment import home_folder, set_defaults
from pipelines.core.errors import UserError

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")]


def up(home: Home = None, prefect_port: PrefectPort = 4200, mlflow_port: MlflowPort = 5000) -> None:
    """Start Prefect, MLflow and a worker on this machine.

    The flows are deployed, too. The servers listen on 127.0.0.1 only, ask for the home's
    credentials, and run until `bertsmith down`. What runs already is left alone; what ended is
    started again.

    Example: bertsmith up --prefect-port 4300 --mlflow-port 5300
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.services.credentials import CREDENTIALS_NAME
    from flows.services.lifecycle import start_services

    services = start_services(folder, prefect_port=prefect_port, mlflow_port=mlflow_port, say=print)
    print(
        f"\n  Prefect   {services.prefect_url}   flows, runs, deployments"
        f"\n  MLflow    {services.mlflow_url}/#/models   models and training runs"
        f"\n  sign in   cat {shlex.quote(str(folder / CREDENTIALS_NAME))}"
        "   name:password for both; Prefect asks for the whole line"
        f"\n  logs      {folder / 'logs'}"
        "\n\nTrigger the whole chain from the page or from any shell:"
        f'\n\n  eval "$({_program("bertsmith")} env --home {shlex.quote(str(folder))})"'
        f"\n  {_program('prefect')} deployment run 'end-to-end/demo' --watch"
        "\n\n`bertsmith` commands for this home use both servers from now on; "
        "`bertsmith down` stops them."
    )


def env(home: Home = None) -> None:
    """Print the variables that point a shell at these servers.

    They include the password, so the output is for a shell to read, not for a screen.

    Example: eval "$(bertsmith env)"
    """
    from flows.services.credentials import make_credentials
    from flows.services.record import read_services
    from flows.services.variables import client_variables

    folder = home_folder(home)
    services = read_services(folder)
    if services is None:
        raise UserError(f"the servers of {folder} are not running; start them with `bertsmith up`")
    if sys.stdout.isatty():
        raise UserError(
            "`bertsmith env` prints a password and does not do so on a screen; type: "
            'eval "$(bertsmith env)"'
        )
    for name, value in client_variables(folder, services, make_credentials(folder)).items():
        print(f"export {name}={shlex.quote(value)}")


def down(home: Home = None) -> None:
    """Stop what `bertsmith up` started.

    Flow runs of its worker are cancelled first; run again, they resume.

    Example: bertsmith down
    """
    from flows.services.lifecycle import stop_services

    folder = home_folder(home)
    stopped = stop_services(folder, say=print)
    if not stopped:
        print(f"Nothing is running for {folder}.")
    for name in stopped:
        print(f"Stopped the {name}.")


def _program(name: str) -> str:
    """How a shell of any folder calls a program of this environment."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and (not here.exists() or Path(found).resolve() == here.resolve()):
        return name
    return shlex.quote(str(here))
