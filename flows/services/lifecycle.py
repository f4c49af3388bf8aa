"""`bertsmith up` and `bertsmith down`: two servers and the process that serves the flows."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from filelock import FileLock, Timeout

from flows.environment import home_database, without_prefect_settings
from flows.services.health import answers, is_free
from flows.services.home_servers import (
    FLOWS,
    MLFLOW_SERVER,
    PREFECT_SERVER,
    HomeServers,
    Login,
    Service,
    make_login,
    read_record,
    remove_record,
    write_record,
)
from pipelines.errors import UserError
from pipelines.settings import make_home

_NAMES = (PREFECT_SERVER, MLFLOW_SERVER, FLOWS)  # in the order of their start
_READY_NAME = "flows.ready"  # made when the flows are served
_START_SECONDS = 180.0  # the first start makes two databases
_STOP_SECONDS = 120.0  # a training run saves a checkpoint
_END_SECONDS = 15.0
_LOCK_SECONDS = 600.0
_POLL_SECONDS = 0.2
Say = Callable[[str], None]


def start_services(home: Path, *, prefect_port: int, mlflow_port: int, say: Say) -> HomeServers:
    """Start what does not run yet: Prefect server, MLflow server, flows.

    The servers listen on 127.0.0.1 only and ask for the home's password. While one of them runs,
    they keep their ports. Raises UserError if a port is taken or a service does not start; what
    was started by then is stopped again.
    """
    if prefect_port == mlflow_port:
        raise UserError(
            f"both servers were given port {prefect_port}; choose another with --prefect-port or "
            "--mlflow-port"
        )
    make_home(home)
    with _one_at_a_time(home):
        servers = read_record(home)
        missing = [name for name in _NAMES if servers is None or not servers.is_running(name)]
        if servers is None or len(missing) == len(_NAMES):
            before = servers.services if servers is not None else {}
            servers = HomeServers(
                prefect_url=f"http://127.0.0.1:{prefect_port}",
                mlflow_url=f"http://127.0.0.1:{mlflow_port}",
                services=before,
            )
        if not missing:
            say("Everything is running already.")
            return servers
        if FLOWS not in missing:  # it would go on with servers that are gone
            missing.append(FLOWS)
        for name in reversed(missing):
            _stop(servers, name)  # what a service that died has left
        try:
            return _start_missing(home, servers, make_login(home), missing, say)
        except BaseException:
            started = read_record(home) or servers
            for name in reversed(missing):
                _stop(started, name)
            if len(missing) == len(_NAMES):
                remove_record(home)
            raise


def stop_services(home: Path) -> list[str]:
    """Stop what `start_services` started for this home; returns the names of what ran.

    The flows go first, with their runs, which both servers still record as ended.
    """
    if not home.is_dir():
        return []
    with _one_at_a_time(home):
        return _stop_all(home)


def _stop_all(home: Path) -> list[str]:
    servers = read_record(home)
    if servers is None:
        return []
    stopped = [name for name in reversed(_NAMES) if _stop(servers, name)]
    remove_record(home)
    return stopped


def _stop(servers: HomeServers, name: str) -> bool:
    """End a service and whatever it started; returns whether anything of it ran.

    First what it started itself: flow runs, which save a checkpoint, stop their Ray and report
    their end. A signal to Prefect's runner reaches none of them.
    """
    service = servers.services.get(name)
    if service is None or not (processes := service.processes()):
        return False
    pids = {process.pid for process in processes} - {service.pid}
    started = [
        process for process in processes if process.pid in pids and _parent(process) not in pids
    ]
    _terminate(started, _STOP_SECONDS)
    _terminate(service.processes(), _END_SECONDS)
    for process in service.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(service.processes(), timeout=_END_SECONDS)
    if service.is_running():
        raise UserError(f"the process {service.pid} of `bertsmith up` does not end; end it first")
    return True


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0


def _terminate(processes: Sequence[psutil.Process], seconds: float) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(processes, timeout=seconds)


def _start_missing(
    home: Path, servers: HomeServers, login: Login, missing: Sequence[str], say: Say
) -> HomeServers:
    say(f"Starting {', '.join(f'the {name}' for name in missing)} …")
    for name, url in _health(servers).items():
        if name in missing and not is_free(urlsplit(url).port or 0):
            option = f"--{name.partition(' ')[0].lower()}-port"
            raise UserError(
                f"port {urlsplit(url).port} for the {name} is in use; stop what listens there, or "
                f"choose another with {option}"
            )
    environment = _variables(home, servers, login)
    ready = home / _READY_NAME
    ready.unlink(missing_ok=True)
    commands = _commands(home, servers)
    for name in _NAMES:
        if name in missing:
            if name == FLOWS:  # they need both servers
                for server, url in _health(servers).items():
                    _wait(home, servers, server, lambda url=url: answers(url))  # type: ignore[misc]
            # Prefect reads settings from files of its folder: those of servers are the home's.
            folder = Path.cwd() if name == FLOWS else home
            service = _start(commands[name], environment, _log(home, name), folder)
            servers = replace(servers, services={**servers.services, name: service})
            write_record(home, servers)  # at once, so that `down` knows it in any case
    for server, url in _health(servers).items():
        _wait(home, servers, server, lambda url=url: answers(url))  # type: ignore[misc]
    _wait(home, servers, FLOWS, ready.exists)
    return servers


def _commands(home: Path, servers: HomeServers) -> dict[str, list[str]]:
    prefect, mlflow = urlsplit(servers.prefect_url), urlsplit(servers.mlflow_url)
    return {
        PREFECT_SERVER: [
            "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(prefect.port),
        ],
        MLFLOW_SERVER: [
            "mlflow", "server", "--app-name", "bertsmith", "--workers", "1",
            "--host", "127.0.0.1", "--port", str(mlflow.port),
            "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
            "--default-artifact-root", (home / "mlartifacts").as_uri(), "--no-serve-artifacts",
            "--cors-allowed-origins", servers.mlflow_url, "--uvicorn-opts", "--no-access-log",
        ],
        FLOWS: ["flows.services.served", str(home / _READY_NAME)],
    }  # fmt: skip


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
) -> Service:
    """Start a module in a session of its own, its output in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # Commands in the background ignore SIGINT, with which servers stop themselves.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return Service(process.pid, psutil.Process(process.pid).create_time())


def _variables(home: Path, servers: HomeServers, login: Login) -> dict[str, str]:
    """The whole environment of a service; a person's own Prefect settings are not part of it."""
    page = servers.prefect_url
    return {
        **without_prefect_settings(os.environ),
        "BERTSMITH_HOME": str(home),
        "PYTHONSAFEPATH": "1",  # a file `random.py` in this folder is no module of ours
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": servers.prefect_api_url,
        **login.for_prefect_clients(),
        "MLFLOW_TRACKING_URI": servers.mlflow_url,
        **login.for_mlflow_clients(servers.mlflow_url),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": home_database(home),
        "PREFECT_SERVER_API_AUTH_STRING": login.text,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{page},{page.replace('127.0.0.1', 'localhost')}",
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        "PREFECT_UI_API_URL": servers.prefect_api_url,  # else the page asks port 4200
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that nothing here uses
    }


def _health(servers: HomeServers) -> dict[str, str]:
    """The health URL of each server."""
    return {
        PREFECT_SERVER: f"{servers.prefect_api_url}/health",
        MLFLOW_SERVER: f"{servers.mlflow_url}/health",
    }


def _log(home: Path, name: str) -> Path:
    return home / "logs" / f"{name.lower().replace(' ', '-')}.log"


def _wait(home: Path, servers: HomeServers, name: str, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while servers.is_running(name) and time.monotonic() < deadline:
        if is_ready():
            return
        time.sleep(_POLL_SECONDS)
    raise UserError(
        f"the {name} did not start within {_START_SECONDS:.0f} s, or ended; {_log(home, name)} "
        "says why"
    )


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
