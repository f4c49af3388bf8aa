"""`bertsmith up` and `bertsmith down`: both servers and a worker of one home."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from flows.services.credentials import Credentials, make_credentials, read_credentials
from flows.services.processes import starting as processes
from flows.services.processes.health import answers
from flows.services.processes.marks import marked_processes
from flows.services.processes.ports import is_free
from flows.services.record import (
    MLFLOW_SERVER,
    NAMES,
    PREFECT_SERVER,
    WORKER,
    Services,
    read_record,
    remove_record,
    write_record,
)
from flows.services.variables import service_variables
from pipelines.core.errors import UserError
from pipelines.core.home import make_home

WORK_POOL = "bertsmith"
_START_SECONDS = 180.0  # the first start makes two databases
_CALL_SECONDS = 900.0  # on a machine that is busy with trainings, imports take minutes
_LOCK_SECONDS = 2 * _CALL_SECONDS
Say = Callable[[str], None]


def start_services(home: Path, *, prefect_port: int, mlflow_port: int, say: Say) -> Services:
    """Start what does not run yet: Prefect server, MLflow server, deployments, worker.

    Everything listens on 127.0.0.1 only, and lets in who has the home's credentials. While one of
    them runs, they keep their ports. Raises UserError where a port is taken or a server does not
    come up; what was started by then is stopped again.
    """
    if prefect_port == mlflow_port:
        raise UserError(
            f"the two servers must have a port each, but both were given {prefect_port}; choose "
            "another with --prefect-port or --mlflow-port"
        )
    make_home(home)
    with _alone(home):
        credentials = make_credentials(home)
        services = _left_running(home) or Services(
            prefect_url=f"http://127.0.0.1:{prefect_port}",
            mlflow_url=f"http://127.0.0.1:{mlflow_port}",
            work_pool=WORK_POOL,
            mark=secrets.token_hex(16),
        )
        missing = [name for name in NAMES if services.running(name) is None]
        if not missing:
            say("It is running already.")
            _reconcile(home, services, credentials, say, worker_is_gone=False)
            return services
        write_record(home, services)  # from now on `down` finds whatever carries the mark
        begun: list[str] = []
        try:
            return _start_missing(home, services, credentials, missing, begun, say)
        except BaseException:
            for name in reversed(begun):
                processes.stop(services.mark, name)
            if len(missing) == len(NAMES):
                remove_record(home)
            raise


def stop_services(home: Path, say: Say) -> list[str]:
    """Stop exactly what `start_services` started for this home; returns the names of what ran.

    The worker goes first, then its flow runs, which both servers are told of; the servers last.
    """
    if not home.is_dir():
        return []
    with _alone(home):
        services = read_record(home)
        if services is None:
            return []
        ran = [name for name in NAMES if marked_processes(services.mark, name)]
        processes.stop(services.mark, WORKER)
        try:
            credentials = read_credentials(home)
            if credentials is not None and _both_answer(services):
                why = "`bertsmith down` stopped it."
                _reconcile(home, services, credentials, say, worker_is_gone=True, why=why)
        except UserError as error:  # the servers end all the same; the next `up` tells them
            say(str(error))
        processes.stop(services.mark)
        remove_record(home)
        return ran


def _left_running(home: Path) -> Services | None:
    """The services of which at least one still runs; what is left of others is ended."""
    services = read_record(home)
    if services is None:
        return None
    for name in NAMES:
        if services.running(name) is None:
            processes.stop(services.mark, name)
    return services if any(map(services.running, NAMES)) else None


def _start_missing(
    home: Path,
    services: Services,
    credentials: Credentials,
    missing: Sequence[str],
    begun: list[str],
    say: Say,
) -> Services:
    urls = {PREFECT_SERVER: services.prefect_url, MLFLOW_SERVER: services.mlflow_url}
    for name in urls.keys() & set(missing):
        _require_free(name, urls[name])
    environment = service_variables(home, services, credentials)

    def start(name: str, command: list[str]) -> None:
        """Write down each process at once: `doctor` must know it whatever happens next."""
        nonlocal services
        begun.append(name)
        log = home / "logs" / f"{name.lower().replace(' ', '-')}.log"
        process = processes.start(
            name, [sys.executable, "-m", *command], environment, services.mark, log
        )
        services = services.with_process(process)
        write_record(home, services)

    say(f"Starting {', '.join(f'the {name}' for name in missing)} …")
    commands = _server_commands(home, services)
    for name in urls:
        if name in missing:
            start(name, commands[name])
    for name in urls:
        service = services.running(name)
        if service is None:
            raise UserError(f"the {name} must stay up, but it ended; {home / 'logs'} says why")
        processes.wait_until_it_answers(service, _health(services)[name], _START_SECONDS)
    if WORKER in missing:
        say("Deploying the flows …")
        _call(["flows.services.deployments", WORK_POOL], home, services, credentials, say)
        _reconcile(home, services, credentials, say, worker_is_gone=True)
        start(WORKER, ["prefect", "worker", "start", "--pool", WORK_POOL, "--name", "local"])
    else:
        _reconcile(home, services, credentials, say, worker_is_gone=False)
    return services


def _server_commands(home: Path, services: Services) -> dict[str, list[str]]:
    prefect_port, mlflow_port = (
        str(urlsplit(url).port) for url in (services.prefect_url, services.mlflow_url)
    )
    prefect = ["prefect", "server", "start", "--host", "127.0.0.1", "--port", prefect_port]
    mlflow = ["pipelines.core.tracking.server", "--home", str(home), "--port", mlflow_port]
    return {PREFECT_SERVER: prefect, MLFLOW_SERVER: mlflow}


def _health(services: Services) -> dict[str, str]:
    return {
        PREFECT_SERVER: f"{services.prefect_api_url}/health",
        MLFLOW_SERVER: f"{services.mlflow_url}/health",
    }


def _both_answer(services: Services) -> bool:
    return all(
        services.running(name) is not None and answers(url)
        for name, url in _health(services).items()
    )


def _require_free(name: str, url: str) -> None:
    port = urlsplit(url).port
    if port is None or not is_free(port):
        raise UserError(
            f"port {port} must be free for the {name}, but something listens there; stop it or "
            f"choose another with --{name.partition(' ')[0].lower()}-port"
        )


def _reconcile(
    home: Path,
    services: Services,
    credentials: Credentials,
    say: Say,
    *,
    worker_is_gone: bool,
    why: str = "Its process ended without a word.",
) -> None:
    """Tell both servers which runs nothing runs any more."""
    command = [
        "flows.services.reconciliation", "--home", str(home), "--work-pool", services.work_pool,
        "--mlflow-url", services.mlflow_url, "--why", why,
        *(["--worker-is-gone"] if worker_is_gone else []),
    ]  # fmt: skip
    _call(command, home, services, credentials, say)


def _call(
    command: Sequence[str], home: Path, services: Services, credentials: Credentials, say: Say
) -> None:
    """Run a module of ours as a client of the services, and pass on what it says."""
    try:
        completed = subprocess.run(
            [sys.executable, "-m", *command],
            env=service_variables(home, services, credentials),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"the servers must answer `{command[0]}` within {_CALL_SECONDS:.0f} s, but they did "
            f"not; {home / 'logs'} may say why"
        ) from error
    for line in completed.stdout.splitlines():
        say(line)
    if completed.returncode != 0:
        raise UserError(
            f"the servers must take what `{command[0]}` tells them, but it said:\n"
            f"{completed.stderr.strip()}"
        )


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One `up` or `down` of a home at a time."""
    try:
        with FileLock(home / "services.lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout as error:
        raise UserError(
            f"one `bertsmith up` or `down` at a time may work on {home}, but another has for "
            f"{_LOCK_SECONDS:.0f} s; wait for it, or end it"
        ) from error
