"""`bertsmith up` and `bertsmith down`: both servers and a worker of one home."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from flows.services import processes
from flows.services.credentials import (
    MLFLOW_SERVER,
    NAMES,
    PREFECT_SERVER,
    WORKER,
    Credentials,
    Services,
    make_credentials,
    own_variables,
    read_credentials,
    read_record,
    remove_record,
    service_variables,
    write_record,
)
from flows.services.health import answers, is_free
from pipelines.config.environment import make_home
from pipelines.config.errors import UserError

WORK_POOL = "bertsmith"
_START_SECONDS = 180.0  # the first start makes two databases
_LOCK_SECONDS = 1800.0  # imports take minutes on a machine that is busy training
_POLL_SECONDS = 0.2
Say = Callable[[str], None]


def start_services(home: Path, *, prefect_port: int, mlflow_port: int, say: Say) -> Services:
    """Start what does not run yet: Prefect server, MLflow server, deployments, worker.

    Everything listens on 127.0.0.1 only and requires the home's credentials. While one of them
    runs, they keep their ports. Raises UserError if a port is taken or a server does not start;
    what was started by then is stopped again.
    """
    _check_folder(Path.cwd())
    if prefect_port == mlflow_port:
        raise UserError(
            f"both servers were given port {prefect_port}; choose another with --prefect-port or "
            "--mlflow-port"
        )
    make_home(home)
    with _one_at_a_time(home):
        credentials = make_credentials(home)
        services = _left_running(home) or Services(
            prefect_url=f"http://127.0.0.1:{prefect_port}",
            mlflow_url=f"http://127.0.0.1:{mlflow_port}",
            mark=secrets.token_hex(16),
        )
        missing = [name for name in NAMES if not services.is_running(name)]
        write_record(home, services)  # from now on `down` finds all marked processes
        try:
            return _start_missing(home, services, credentials, missing, say)
        except BaseException:
            for name in reversed(missing):
                processes.stop(services.mark, name)
            if len(missing) == len(NAMES):
                remove_record(home)
            raise


def stop_services(home: Path, say: Say) -> list[str]:
    """Stop exactly what `start_services` started for this home; returns the names of what ran.

    The worker goes first, then its flow runs, which both servers record as ended; the servers last.
    """
    if not home.is_dir():
        return []
    with _one_at_a_time(home):
        services = read_record(home)
        if services is None:
            return []
        ran = [name for name in NAMES if processes.marked_processes(services.mark, name)]
        processes.stop(services.mark, WORKER)
        try:
            credentials = read_credentials(home)
            if credentials is not None and _both_answer(services):
                with _as_client(home, services, credentials):
                    why = "`bertsmith down` stopped it."
                    _reconcile(home, services, say, worker_is_gone=True, why=why)
        except UserError as error:  # the servers stop anyway; the next `up` reconciles
            say(str(error))
        processes.stop(services.mark)
        remove_record(home)
        return ran


def _check_folder(folder: Path) -> None:
    """Raise UserError where Python would import other packages of our names from `folder`."""
    for name in ("flows", "pipelines", "bert_core"):
        own = find_spec(name)
        assert own is not None and own.origin is not None
        if (folder / name / "__init__.py").exists() and Path(own.origin).parent != folder / name:
            raise UserError(
                f"{folder} has a package {name} of its own, which runs that start here would "
                "import in place of Bertsmith's; type `bertsmith up` in another folder"
            )


def _left_running(home: Path) -> Services | None:
    """The services if at least one still runs; the remains of the others are stopped."""
    services = read_record(home)
    if services is None:
        return None
    for name in NAMES:
        if not services.is_running(name):
            processes.stop(services.mark, name)
    return services if any(map(services.is_running, NAMES)) else None


def _start_missing(
    home: Path, services: Services, credentials: Credentials, missing: list[str], say: Say
) -> Services:
    environment = service_variables(home, services, credentials)
    commands = {
        PREFECT_SERVER: ["prefect", "server", "start", "--host", "127.0.0.1"],
        MLFLOW_SERVER: ["pipelines.tracking.server", "--home", str(home)],
        WORKER: ["prefect", "worker", "start", "--pool", WORK_POOL, "--name", "local"],
    }
    health = _health(services)
    for name, url in health.items():
        port = str(urlsplit(url).port)
        commands[name] += ["--port", port]
        if name in missing and not is_free(int(port)):
            raise UserError(
                f"port {port} for the {name} is in use; stop what listens there, or choose another "
                f"with --{name.partition(' ')[0].lower()}-port"
            )

    def start(name: str) -> None:
        nonlocal services
        pid = processes.start(
            name, [sys.executable, "-m", *commands[name]], environment, services.mark,
            _log(home, name),
        )  # fmt: skip
        services = replace(services, pids={**services.pids, name: pid})
        write_record(home, services)  # at once, so that `doctor` knows it in any case

    if missing:
        say(f"Starting {', '.join(f'the {name}' for name in missing)} …")
    else:
        say("Everything is running already.")
    for name in health:
        if name in missing:
            start(name)
    for name, url in health.items():
        _wait_until_it_answers(home, services, name, url)
    with _as_client(home, services, credentials):
        if WORKER in missing:
            from flows.services.platform import deploy_to

            say("Deploying the flows …")
            for note in deploy_to(WORK_POOL):
                say(note)
        _reconcile(home, services, say, worker_is_gone=WORKER in missing)
    if WORKER in missing:
        start(WORKER)
    return services


def _health(services: Services) -> dict[str, str]:
    """The health URL of each server."""
    return {
        PREFECT_SERVER: f"{services.prefect_api_url}/health",
        MLFLOW_SERVER: f"{services.mlflow_url}/health",
    }


def _both_answer(services: Services) -> bool:
    """Whether our own servers answer: other programs on their ports must not get the password."""
    return all(
        services.is_running(name) and answers(url) for name, url in _health(services).items()
    )


def _log(home: Path, name: str) -> Path:
    return home / "logs" / f"{name.lower().replace(' ', '-')}.log"


def _wait_until_it_answers(home: Path, services: Services, name: str, url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while services.is_running(name) and time.monotonic() < deadline:
        if answers(url):
            return
        time.sleep(_POLL_SECONDS)
    raise UserError(
        f"the {name} did not answer at {url} within {_START_SECONDS:.0f} s, or ended; "
        f"{_log(home, name)} says why"
    )


def _reconcile(
    home: Path,
    services: Services,
    say: Say,
    *,
    worker_is_gone: bool,
    why: str = "Its process ended without reporting.",
) -> None:
    """Report runs whose process is gone to both servers."""
    from flows.services.reconciliation import end_dead_flow_runs, is_over
    from pipelines.tracking.server import end_abandoned_runs

    for name in end_dead_flow_runs(home, WORK_POOL, worker_is_gone=worker_is_gone, why=why):
        say(f"The run {name!r} no longer runs: Prefect shows it as ended.")
    for name in end_abandoned_runs(services.mlflow_url, lambda run: is_over(home, run)):
        say(f"The training run {name!r} no longer runs: MLflow shows it as ended.")


@contextmanager
def _as_client(home: Path, services: Services, credentials: Credentials) -> Iterator[None]:
    """Inside, this process is a client of both servers, and every failure is a UserError."""
    os.environ.update(own_variables(home, services, credentials))
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    client = {PREFECT_API_URL: services.prefect_api_url, PREFECT_API_AUTH_STRING: credentials.text}
    try:
        with temporary_settings(client):  # Prefect may have been imported before
            yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the servers of {home} refused: {type(error).__name__}: {error}; {home / 'logs'} may "
            "say why"
        ) from error


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    try:
        with FileLock(home / "services.lock", timeout=_LOCK_SECONDS):
            yield
    except Timeout as error:
        raise UserError(
            f"another `bertsmith up` or `down` has been working on {home} for "
            f"{_LOCK_SECONDS:.0f} s; wait for it, or end it"
        ) from error
