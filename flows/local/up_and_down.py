"""`bertsmith up` and `bertsmith down`: two servers and the process that serves the flows."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
from filelock import FileLock

from flows.environment import server_variables
from flows.local.health import answers, is_free
from flows.local.servers import (
    FLOWS,
    MLFLOW_SERVER,
    PREFECT_SERVER,
    HomeServers,
    Service,
    make_login,
    read_record,
    remove_record,
    write_record,
)
from pipelines.errors import UserError
from pipelines.settings import make_home

_NAMES = (PREFECT_SERVER, MLFLOW_SERVER, FLOWS)  # in the order of their start
_LOCK_NAME = "services.lock"  # another `up` or `down` goes first
_READY_NAME = "flows.ready"  # made when the flows are served
_START_SECONDS = 180.0  # the first start makes two databases
_STOP_SECONDS = 120.0  # a training run saves a checkpoint
_END_SECONDS = 15.0
_POLL_SECONDS = 0.2
Say = Callable[[str], None]


def start_services(home: Path, *, prefect_port: int, mlflow_port: int, say: Say) -> HomeServers:
    """Start Prefect server, MLflow server and flows; where one does not run, all start again.

    The servers listen on 127.0.0.1 only and ask for the home's password. Raises UserError if a port
    is taken or a service does not start; what was started by then is stopped again.
    """
    if prefect_port == mlflow_port:
        raise UserError(
            f"both servers were given port {prefect_port}; choose another with --prefect-port or "
            "--mlflow-port"
        )
    with FileLock(make_home(home) / _LOCK_NAME):
        servers = read_record(home)
        if servers is not None and all(map(servers.is_running, _NAMES)):
            say("Everything is running already.")
            return servers
        _stop_all(home)  # what services that died have left
        for option, port in (("prefect", prefect_port), ("mlflow", mlflow_port)):
            if not is_free(port):
                raise UserError(
                    f"port {port} is in use; stop what listens there, or choose another with "
                    f"--{option}-port"
                )
        say("Starting both servers and the flows …")
        try:
            return _start_all(home, prefect_port, mlflow_port)
        except BaseException:
            _stop_all(home)
            raise


def stop_services(home: Path) -> list[str]:
    """Stop what `start_services` started for this home; returns the names of what ran.

    The flows go first, with their runs, which both servers still record as ended.
    """
    if not home.is_dir():
        return []
    with FileLock(home / _LOCK_NAME):
        return _stop_all(home)


def _stop_all(home: Path) -> list[str]:
    servers = read_record(home)
    if servers is None:
        return []
    services = [(name, servers.services[name]) for name in _NAMES if name in servers.services]
    stopped = [name for name, service in reversed(services) if _stop(service)]
    remove_record(home)
    return stopped


def _stop(service: Service) -> bool:
    """End a service and whatever it started; returns whether anything of it ran.

    First what it started itself: flow runs, which save a checkpoint, stop their Ray and report
    their end. A signal to Prefect's runner reaches none of them.
    """
    processes = service.processes()
    if not processes:
        return False
    pids = {process.pid for process in processes} - {service.pid}
    _terminate([each for each in processes if each.pid in pids and _parent(each) not in pids],
               _STOP_SECONDS)  # fmt: skip
    _terminate(service.processes(), _END_SECONDS)
    for process in service.processes():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(service.processes(), timeout=_END_SECONDS)
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
    # One that ended stays a zombie until its parent asks for it, which psutil would wait for.
    deadline = time.monotonic() + seconds
    while any(map(_is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_all(home: Path, prefect_port: int, mlflow_port: int) -> HomeServers:
    servers = HomeServers(f"http://127.0.0.1:{prefect_port}", f"http://127.0.0.1:{mlflow_port}")
    commands, ready = _commands(home, servers), home / _READY_NAME
    ready.unlink(missing_ok=True)
    health = {
        PREFECT_SERVER: f"{servers.prefect_api_url}/health",
        MLFLOW_SERVER: f"{servers.mlflow_url}/health",
    }

    def start(name: str, folder: Path) -> None:
        nonlocal servers
        service = start_service(commands[name], _variables(home, servers), _log(home, name), folder)
        servers = replace(servers, services={**servers.services, name: service})
        write_record(home, servers)  # at once, so that `down` knows it in any case

    for name in health:
        start(name, home)  # Prefect reads settings from files of its folder
    for name, url in health.items():
        _wait(home, servers, name, lambda url=url: answers(url))  # type: ignore[misc]
    start(FLOWS, Path.cwd())
    _wait(home, servers, FLOWS, ready.exists)
    return servers


def _commands(home: Path, servers: HomeServers) -> dict[str, list[str]]:
    prefect_port, mlflow_port = (
        url.rpartition(":")[2] for url in (servers.prefect_url, servers.mlflow_url)
    )
    return {
        PREFECT_SERVER: [
            "prefect", "server", "start", "--host", "127.0.0.1", "--port", prefect_port,
        ],
        MLFLOW_SERVER: [
            "mlflow", "server", "--app-name", "bertsmith", "--workers", "1",
            "--host", "127.0.0.1", "--port", mlflow_port,
            "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}",
            "--default-artifact-root", (home / "mlartifacts").as_uri(), "--no-serve-artifacts",
            "--cors-allowed-origins", servers.mlflow_url, "--uvicorn-opts", "--no-access-log",
        ],
        FLOWS: ["flows.local.served", str(home / _READY_NAME)],
    }  # fmt: skip


def start_service(
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


def _variables(home: Path, servers: HomeServers) -> dict[str, str]:
    """The whole environment of a service; a person's own Prefect settings are not part of it."""
    page, login = servers.prefect_url, make_login(home)
    origins = f"{page},{page.replace('127.0.0.1', 'localhost')}"
    return {
        **server_variables(home, login, origins),
        "BERTSMITH_HOME": str(home),
        "PYTHONSAFEPATH": "1",  # a file `random.py` in this folder is no module of ours
        "PREFECT_API_URL": servers.prefect_api_url,
        "MLFLOW_TRACKING_URI": servers.mlflow_url,
        **login.for_prefect_clients(),
        **login.for_mlflow_clients(servers.mlflow_url),
        "PREFECT_UI_API_URL": servers.prefect_api_url,  # else the page asks port 4200
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that nothing here uses
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
