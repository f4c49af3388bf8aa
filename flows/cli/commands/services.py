"""Commands that start and stop servers, serve a model, and check the installation."""

import shlex
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.cli.commands.predict import kinds_of
from flows.cli.registry import Home, Store, asked_model, model_address, runtime_of, say
from flows.environment import home_folder, set_defaults
from pipelines.errors import UserError

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")]


def up(home: Home = None, prefect_port: PrefectPort = 4200, mlflow_port: MlflowPort = 5000) -> None:
    """Start Prefect's and MLflow's servers, and serve the flows, on this machine.

    The servers listen on 127.0.0.1 only, ask for the home's password, and run until `bertsmith
    down`. What runs already is left alone; what ended is started again. Relative paths of runs
    start from the folder in which the flows were started.

    Example: bertsmith up --prefect-port 4300 --mlflow-port 5300
    """
    folder = home_folder(home)
    set_defaults(folder)
    from flows.services.home_servers import CREDENTIALS_NAME
    from flows.services.lifecycle import start_services

    servers = start_services(folder, prefect_port=prefect_port, mlflow_port=mlflow_port, say=say)
    password_file = shlex.quote(str(folder / CREDENTIALS_NAME))
    print(
        f"\n  Prefect   {servers.prefect_url}   flows, runs, schedules"
        f"\n  MLflow    {servers.mlflow_url}/#/models   models and training runs"
        f"\n  sign in   cat {password_file}"
        "   name:password for both; Prefect asks for the whole line"
        f"\n  logs      {folder / 'logs'}"
        "\n\nStart the whole chain from Prefect's page, or from a shell:"
        f"\n\n  export PREFECT_API_URL={servers.prefect_api_url}"
        f' PREFECT_API_AUTH_STRING="$(cat {password_file})"'
        f"\n  {_program('prefect')} deployment run 'end-to-end/demo' --watch"
        "\n\n`bertsmith` commands for this home use both servers from now on; "
        "`bertsmith down` stops them."
    )


def down(home: Home = None) -> None:
    """Stop what `bertsmith up` started.

    Runs that its page or a schedule started are cancelled first; run again, they resume.

    Example: bertsmith down
    """
    from flows.services.lifecycle import stop_services

    folder = home_folder(home)
    stopped = stop_services(folder)
    if not stopped:
        print(f"Nothing is running for {folder}.")
    for name in stopped:
        print(f"Stopped the {name}.")


def _program(name: str) -> str:
    """How a shell in any folder calls a program of this environment."""
    here = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if on_path is not None and (not here.exists() or Path(on_path).resolve() == here.resolve()):
        return name
    return shlex.quote(str(here))


def doctor(home: Home = None, store: Store = None) -> None:
    """Check the installation and what it uses, and say what to do.

    Python and its packages, the store, the tracker, the Prefect API and Ray, as runs of this shell
    use them. Exit code 1 if something has to be put right first.

    Example: bertsmith doctor --store s3://bucket/prefix
    """
    runtime = runtime_of(home, store)
    from flows.services.doctor import checks

    failed = False
    for check in checks(runtime, home_folder(home)):
        failed = failed or not check.is_good
        print(f"{'ok' if check.is_good else 'fail':<5} {check.name:<8} {check.result}", flush=True)
        if check.remedy:
            print(f"{'':<14} -> {check.remedy}")
    if failed:
        raise typer.Exit(code=1)


def serve(
    model: Annotated[
        str | None,
        typer.Argument(
            help="name, name@alias, name/version, a fingerprint of the store or a folder. "
            "[default: the newest champion of any task]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 5001,
    host: Annotated[
        str, typer.Option(help="Address to listen on. No password is required.")
    ] = "127.0.0.1",
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; further ones get status 503.")
    ] = 64,
    precision: Annotated[
        Literal["float32", "bf16", "auto"],
        typer.Option(
            help="float32: as the version was verified; bf16: faster on CPUs that multiply it; "
            "auto: bf16 on those."
        ),
    ] = "float32",
    home: Home = None,
) -> None:
    """Answer HTTP requests with a model of any task.

    POST /invocations takes and gives what `mlflow models serve` does; GET /health says which model
    answers. Requests that come at the same time are answered in one batch.

    Example: bertsmith serve bertsmith-classifier@champion --port 5001
    """
    kinds = () if model else kinds_of(None)
    with bound_socket(host, port) as at, asked_model(model, home, *kinds) as (folder, called):
        from pipelines.predict.server import serve as answer_requests
        from pipelines.registry.package import opened

        address = f"http://{host}:{at.getsockname()[1]}/invocations"
        answer_requests(
            opened(folder), model_address(called), at, queue,
            ready=lambda: say(f"{address} answers; Ctrl-C ends it"), precision=precision,
        )  # fmt: skip


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at this address, so that no second server can take it meanwhile."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
            bound.listen()
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another with --port or "
            "--host"
        ) from error
    return bound
