"""Commands that start and stop the servers of this machine, and check the installation."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import Home, Store, runtime_of, say
from flows.environment import home_folder, set_defaults

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")]


def up(home: Home = None, prefect_port: PrefectPort = 4200, mlflow_port: MlflowPort = 5000) -> None:
    """Start the servers, and serve the flows.

    They are Prefect's and MLflow's, listen on 127.0.0.1 only, ask for the home's password, and run
    until `bertsmith down`. If one of them ended, all are started again. Relative paths of runs
    start from the folder in which the flows were started.

    Example: bertsmith up --prefect-port 4300 --mlflow-port 5300
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.local.servers import CREDENTIALS_NAME
    from flows.local.up_and_down import start_services

    servers = start_services(folder, prefect_port=prefect_port, mlflow_port=mlflow_port, say=say)
    password_file = shlex.quote(str(folder / CREDENTIALS_NAME))
    prefect = shlex.quote(str(Path(sys.executable).parent / "prefect"))
    print(
        f"\n  Prefect   {servers.prefect_url}   flows, runs, schedules"
        f"\n  MLflow    {servers.mlflow_url}/#/models   models and training runs"
        f"\n  sign in   cat {password_file}"
        "   name:password for both; Prefect asks for the whole line"
        f"\n  logs      {folder / 'logs'}"
        "\n\nStart the whole chain from Prefect's page, or from a shell:"
        f"\n\n  export PREFECT_API_URL={servers.prefect_api_url}"
        f' PREFECT_API_AUTH_STRING="$(cat {password_file})"'
        f"\n  {prefect} deployment run 'end-to-end/demo' --watch"
        "\n\n`bertsmith` commands for this home use both servers from now on; "
        "`bertsmith down` stops them."
    )


def down(home: Home = None) -> None:
    """Stop what `bertsmith up` started.

    Runs that its page or a schedule started are cancelled first; run again, they resume.

    Example: bertsmith down
    """
    from flows.local.up_and_down import stop_services

    stopped = stop_services(home_folder(home))
    print(f"Stopped: {', '.join(stopped)}." if stopped else "Nothing is running.")


def doctor(home: Home = None, store: Store = None) -> None:
    """Check the installation and what it uses, and say what to do.

    Python and its packages, the store, the tracker, the Prefect API and Ray, as runs of this shell
    use them. Exit code 1 if something has to be put right first.

    Example: bertsmith doctor --store s3://bucket/prefix
    """
    runtime = runtime_of(home, store)
    from flows.local.doctor import checks

    failed = False
    for name, sentence, is_good in checks(runtime, home_folder(home)):
        failed = failed or not is_good
        print(f"{'ok' if is_good else 'fail':<5} {name:<8} {sentence}", flush=True)
    if failed:
        raise typer.Exit(code=1)
