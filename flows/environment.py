"""The environment of a command: the home folder, the Prefect API and the MLflow server.

All of this must happen before Prefect is imported, because it reads its settings on import. Prefect
needs an API; if none is configured, one is started for this process.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from filelock import BaseFileLock, FileLock, Timeout

from flows.services.credentials import (
    Credentials,
    Services,
    make_credentials,
    read_credentials,
    read_services,
)
from flows.services.health import answers, free_port
from pipelines.config.environment import home_folder as home_folder
from pipelines.config.environment import make_home
from pipelines.config.errors import UserError
from pipelines.tracking.sign_in import home_variables

# No telemetry, no prompts, and what a run needs from Prefect; variables that are set already win.
# The image sets the same for other programs: infra/Dockerfile.
DEFAULTS = {
    "DO_NOT_TRACK": "true",  # MLflow ignores "1"
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "pipelines,bert_core",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
    "PREFECT_CLI_PROMPT": "false",
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",  # a server's answer while its database is down
}
# A terminal shows one line of progress and the summary; all log lines stay with the Prefect run.
_QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}

_LOOPBACK = ("127.0.0.1", "localhost")
_START_SECONDS = 180.0  # its first start makes a database, on a busy machine slowly
_POLL_SECONDS = 0.05
# Schedules and clean-up are a long-lived server's work.
_IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS")


@dataclass(slots=True)
class LocalApi:
    """A Prefect API on the loopback that lives as long as the process that started it."""

    url_of_this_process: ClassVar[str] = ""  # its pages end with the process

    url: str
    credentials: Credentials  # it rejects requests without them
    _process: subprocess.Popen[bytes]
    _log: Path
    _turn: BaseFileLock

    @classmethod
    def start(cls, home: Path) -> "LocalApi":
        """Start it and return at once; `wait` returns when it answers.

        Processes with one home start theirs one after the other: two would migrate the same
        database at once. Call it on the main thread: the API ends with the thread that started it,
        so that even `kill -9` of a run leaves nothing behind.
        """
        log = make_home(home / "logs") / "prefect-local.log"
        turn = FileLock(home / "prefect-local.lock", timeout=_START_SECONDS)
        try:
            turn.acquire()
        except Timeout as error:
            raise _not_started(log) from error
        port, credentials = str(free_port()), make_credentials(home)
        page = f"http://127.0.0.1:{port}"
        command = ["prefect", "server", "start", "--no-ui", "--host", "127.0.0.1", "--port", port]
        idle = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _IDLE_SERVICES}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **idle, **credentials.for_prefect_server(page)},
                start_new_session=True,  # Ctrl-C is for the run, which reports it to the API
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        local_api = cls(f"{page}/api", credentials, process, log, turn)
        atexit.register(local_api.stop)
        return local_api

    def wait(self) -> None:
        """Return when the API answers."""
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not answers(f"{self.url}/health"):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise _not_started(self._log)
                time.sleep(_POLL_SECONDS)
        finally:
            self._turn.release(force=True)

    def stop(self) -> None:
        """End the API."""
        self._turn.release(force=True)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def set_defaults(home: Path) -> Services | None:
    """Point this process and its children at `home` and, if they run, at its services."""
    os.environ["BERTSMITH_HOME"] = str(home)
    os.environ.setdefault("MPLCONFIGDIR", str(home / "matplotlib"))  # else in the person's own home
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    _spare_the_proxy()
    services = read_services(home)
    if services is not None:
        os.environ.setdefault("PREFECT_API_URL", services.prefect_api_url)
        os.environ.setdefault("MLFLOW_TRACKING_URI", services.mlflow_url)
        _let_in(home, services)
    if not _prefect_api_is_configured():
        os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    return services


def prepare_flows(home: Path) -> Callable[[], None]:
    """Make sure that flows of this process have a Prefect API to report to.

    A configured one is used; otherwise one is started for this process, and starts up during the
    caller's imports. Call what this returns before the first flow: it waits until the API answers.
    """
    set_defaults(home)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if _prefect_api_is_configured():
        return _require_prefect
    local_api = LocalApi.start(home)
    os.environ["PREFECT_API_URL"] = LocalApi.url_of_this_process = local_api.url
    os.environ.update(local_api.credentials.for_prefect_clients())
    return local_api.wait


def _require_prefect() -> None:
    from flows.services.doctor_servers import require_prefect

    require_prefect()


def _spare_the_proxy() -> None:
    """Requests to servers on this machine bypass http_proxy."""
    names = ("no_proxy", "NO_PROXY")  # of which libraries ask the first before the second
    said = {name: os.environ[name] for name in names if os.environ.get(name)}
    for name in names:
        hosts = [host.strip() for host in said.get(name, next(iter(said.values()), "")).split(",")]
        others = [host for host in hosts if host and host not in _LOOPBACK]
        # A star means every host only where it is alone.
        os.environ[name] = "*" if "*" in others else ",".join([*others, *_LOOPBACK])


def _let_in(home: Path, services: Services) -> None:
    """Set the home's credentials, which go to its own servers only.

    pipelines.tracking.sign_in sends MLflow's to the home's server alone.
    """
    credentials = read_credentials(home)
    if credentials is None:
        return  # servers of a version without passwords
    if os.environ["PREFECT_API_URL"] == services.prefect_api_url:
        os.environ.update(credentials.for_prefect_clients())
    os.environ.update(home_variables(services.mlflow_url, credentials.user, credentials.password))


def _prefect_api_is_configured() -> bool:
    """Whether the environment or the person's active Prefect profile names an API."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    folder = Path(os.environ.get("PREFECT_HOME", Path.home() / ".prefect"))
    profiles_file = folder / "profiles.toml"
    if not profiles_file.is_file():
        return False
    profiles = tomllib.loads(profiles_file.read_text())
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active", ""))
    return "PREFECT_API_URL" in profiles.get("profiles", {}).get(active, {})


def _not_started(log: Path) -> UserError:
    return UserError(
        f"the local Prefect API did not start within {_START_SECONDS:.0f} s; {log} says why "
        "(`bertsmith doctor` checks the machine)"
    )


def _die_with_parent() -> None:
    """Between fork and exec: ask Linux for SIGTERM when the parent dies."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
