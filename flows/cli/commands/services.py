"""Commands that start and stop servers, serve a model, and check the installation."""

import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from flows.cli.commands.predict import kinds_of
from flows.cli.registry import Home, Store, asked_model, model_address, runtime_of, say
from flows.environment import home_folder, set_defaults
from pipelines.config.errors import UserError

if TYPE_CHECKING:  # importing it would slow down help
    from flows.services.doctor import Check

PrefectPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the Prefect server.")]
MlflowPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the MLflow server.")]
Platform = Annotated[
    bool, typer.Option("--platform", help="Also check the team's servers, as deployments use them.")
]


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
    from flows.services.credentials import make_credentials, read_services, shell_variables

    folder = home_folder(home)
    services = read_services(folder)
    if services is None:
        raise UserError(f"the servers of {folder} are not running; start them with `bertsmith up`")
    if sys.stdout.isatty():
        raise UserError(
            "`bertsmith env` prints a password and does not do so on a screen; type: "
            'eval "$(bertsmith env)"'
        )
    for name, value in shell_variables(folder, services, make_credentials(folder)).items():
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
    """How a shell in any folder calls a program of this environment."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    if found is not None and (not here.exists() or Path(found).resolve() == here.resolve()):
        return name
    return shlex.quote(str(here))


def doctor(
    home: Home = None,
    store: Store = None,
    prefect_port: PrefectPort = 4200,
    mlflow_port: MlflowPort = 5000,
    platform: Platform = False,
) -> None:
    """Check the installation and say what to fix.

    Machine, ports, store and tracker. With --platform also what deployments need: the Prefect
    server of PREFECT_API_URL, work pools with live workers, secrets, and store, tracker and cluster
    as the server's block names them. Exit code 1 if something has to be fixed first.

    Example: bertsmith doctor --platform
    """
    folder = home_folder(home)
    set_defaults(folder)
    failed = False
    for result in _results(folder, store, prefect_port, mlflow_port, platform):
        failed = failed or result.state == "fail"
        print(f"{result.state:<5} {result.name:<10} {result.finding}", flush=True)
        if result.advice:
            print(f"{'':<16} -> {result.advice}")
    if failed:
        raise typer.Exit(code=1)


def _results(
    home: Path, store: str | None, prefect_port: int, mlflow_port: int, platform: bool
) -> Iterator["Check"]:
    """Quick checks first."""
    from flows.services import doctor, doctor_servers

    if platform:
        yield from _platform_results()
    store_url = runtime_of(home, store).store_url()
    yield doctor.check_python()
    yield doctor.check_packages()
    yield doctor.check_processor()
    yield doctor.check_memory()
    yield doctor.check_disk(home)
    yield doctor.check_servers(home, prefect_port, mlflow_port)
    yield doctor_servers.check_store(store_url)
    yield doctor_servers.check_tracker()
    yield doctor_servers.check_ray(store_url)


def _platform_results() -> Iterator["Check"]:
    from flows.services.doctor_servers import check_pools, check_prefect, check_secrets
    from flows.services.platform import read_platform
    from flows.services.runtime_block import read_runtime, use_runtime

    prefect = check_prefect()
    yield prefect
    if prefect.state == "fail":
        return  # the remaining checks ask this server
    yield from check_pools(read_platform())
    yield check_secrets()
    use_runtime(read_runtime())


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
        from pipelines.inference.server import serve as answer_requests
        from pipelines.registry.opening import opened

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
