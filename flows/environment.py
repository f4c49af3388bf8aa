"""The environment of a command: the home folder, the Prefect API and the MLflow server.

Prefect's own settings decide which API a flow reports to: variables, .env, prefect.toml,
pyproject.toml or a profile. Where they name none, it is the home's server while that runs, and
else an API that is started for this process, on the home's database.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar
from urllib.request import getproxies

from filelock import BaseFileLock, FileLock, Timeout

from flows.local.health import answers, free_port
from flows.local.servers import Login, make_login, running_servers
from pipelines.errors import UserError, first_line, redacted
from pipelines.settings import home_folder as home_folder
from pipelines.settings import make_home

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
    # Requests to servers on this machine bypass http_proxy.
    "NO_PROXY": "127.0.0.1,localhost",
}
# A terminal shows one line of progress and the summary; all log lines stay with the Prefect run.
_QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL", "MLFLOW_LOGGING_LEVEL": "WARNING"}
# Which API, and which database a server of ours would open: a home has its own.
_PERSONAL = (
    "PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH", "PREFECT_API_DATABASE_CONNECTION_URL",
    "PREFECT_SERVER_DATABASE_CONNECTION_URL",
)  # fmt: skip

_START_SECONDS = 180.0  # its first start makes a database, on a busy machine slowly
_POLL_SECONDS = 0.05
# A socket's address has 107 bytes: /ray/session_2026-01-01_…_1234567/sockets/plasma_store
_LONGEST_RAY_FOLDER = 107 - 68
# Schedules and clean-up are a long-lived server's work.
_IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS")


def server_variables(home: Path, login: Login, origins: str) -> dict[str, str]:
    """The environment of a Prefect server of this home, whose page has one of these `origins`.

    A person's own Prefect settings are not part of it.
    """
    database = make_home(home / "prefect") / "prefect.db"
    return {
        **{name: value for name, value in os.environ.items() if name not in _PERSONAL},
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_SERVER_API_AUTH_STRING": login.text,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": origins,
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
    }


@dataclass(slots=True)
class LocalApi:
    """A Prefect API on the loopback that lives as long as the process that started it."""

    url_of_this_process: ClassVar[str] = ""  # its pages end with the process

    url: str
    login: Login  # it rejects requests without it
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
        port, login = str(free_port()), make_login(home)
        page = f"http://127.0.0.1:{port}"
        command = ["prefect", "server", "start", "--no-ui", "--host", "127.0.0.1", "--port", port]
        idle = {f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _IDLE_SERVICES}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=home,  # Prefect reads settings from files of its folder
                env={**server_variables(home, login, page), **idle},
                start_new_session=True,  # Ctrl-C is for the run, which reports it to the API
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        local_api = cls(f"{page}/api", login, process, log, turn)
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
        self._process.terminate()
        try:
            self._process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def set_defaults(home: Path) -> None:
    """Point this process and its children at `home` and, if they run, at its servers."""
    os.environ["BERTSMITH_HOME"] = str(home)
    try:
        Path.home()
    except RuntimeError:  # a user without one, by whom Prefect could not be imported
        os.environ["HOME"] = str(home)
    os.environ.setdefault("MPLCONFIGDIR", str(home / "matplotlib"))  # else in the person's own home
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    servers = running_servers(home)
    if servers is not None:
        os.environ.setdefault("MLFLOW_TRACKING_URI", servers.mlflow_url)
        os.environ.update(make_login(home).for_mlflow_clients(servers.mlflow_url))


def _check_python() -> None:
    """Raise UserError for variables with which the libraries cannot start."""
    if sys.flags.optimize > 1:
        raise UserError("PYTHONOPTIMIZE=2 removes docstrings, which Ray needs; unset it")
    if "error" in sys.warnoptions:
        raise UserError("PYTHONWARNINGS=error ends the libraries at their warnings; unset it")
    folder = os.environ.get("RAY_TMPDIR", "")
    if len(os.fsencode(folder)) > _LONGEST_RAY_FOLDER:
        raise UserError(
            f"RAY_TMPDIR={folder} is too long for Ray's sockets; name a folder of at most "
            f"{_LONGEST_RAY_FOLDER} bytes"
        )


def _check_proxies() -> None:
    """Raise UserError for a proxy that Prefect's client cannot use."""
    import httpx

    proxies = {name: proxy for name, proxy in getproxies().items() if name != "no"}
    for name, proxy in proxies.items():
        if proxy.startswith("socks") and find_spec("socksio") is None:
            raise UserError(
                f"a SOCKS proxy is set ({name}_proxy): unset it, or pip install 'httpx[socks]'"
            )
        try:
            httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
        except httpx.InvalidURL as error:
            raise UserError(
                f"{name}_proxy is {redacted(proxy)}, which is no address ({error}); correct or "
                "unset it"
            ) from error


def prepare_flows(home: Path) -> Callable[[], None]:
    """Make sure that flows of this process have a Prefect API to report to.

    An API of our own starts up during the caller's imports. Call what this returns before the
    first flow: it waits until the API answers, and raises UserError if it does not.
    """
    set_defaults(home)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if not (Path.home() / ".prefect").is_dir():  # Prefect makes it when it is imported
        os.environ.setdefault("PREFECT_HOME", str(make_home(home / "prefect")))
    _check_python()
    _check_proxies()
    try:
        from prefect.settings import get_current_settings

        url = get_current_settings().api.url
    except ValueError as error:  # of TOML, of pydantic
        raise UserError(
            f"Prefect's own settings cannot be read ({first_line(error)}); correct "
            f"{os.environ.get('PREFECT_PROFILES_PATH') or '~/.prefect/profiles.toml'}, or the "
            "prefect.toml, .env or variable that holds them"
        ) from error
    if url:
        sys.stderr.write(f"Runs are recorded at {redacted(url)}, which Prefect's settings name.\n")
        return _require_prefect
    servers = running_servers(home)
    if servers is not None:
        _use_prefect_api(home, servers.prefect_api_url, make_login(home))
        return _require_prefect
    local_api = LocalApi.start(home)
    LocalApi.url_of_this_process = local_api.url
    _use_prefect_api(home, local_api.url, local_api.login)
    return local_api.wait


def _use_prefect_api(home: Path, url: str, login: Login) -> None:
    """Make this API the one of this process and its children."""
    for name in _PERSONAL:
        os.environ.pop(name, None)
    os.environ["PREFECT_HOME"] = str(home / "prefect")
    os.environ["PREFECT_API_URL"] = url
    os.environ.update(login.for_prefect_clients())
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()  # Prefect has read its settings before


def _require_prefect() -> None:
    """Return if the Prefect API answers and accepts the password; else raise UserError."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import get_current_settings

    url = get_current_settings().api.url
    try:
        with get_client(sync_client=True) as client:
            client.read_deployments(limit=1)
    except PrefectHTTPStatusError as error:
        raise UserError(
            f"Prefect: {url} answers with {error.response.status_code}; set "
            "PREFECT_API_AUTH_STRING to the server's name:password, or look at its log"
        ) from error
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"Prefect: {url} does not answer ({type(error).__name__}), or is no Prefect server; "
            "start the server, or correct PREFECT_API_URL"
        ) from error


def _not_started(log: Path) -> UserError:
    return UserError(
        f"the local Prefect API did not start; {log} says why (`bertsmith doctor` checks the "
        "machine)"
    )


def _die_with_parent() -> None:
    """Between fork and exec: ask Linux for SIGTERM when the parent dies."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
