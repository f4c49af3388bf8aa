"""A Prefect API for one process: a local run needs no server, but Prefect needs an API."""

import atexit
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from filelock import BaseFileLock, FileLock, Timeout

from flows.services.credentials import Credentials, make_credentials
from flows.services.health import answers, free_port
from pipelines.config.errors import UserError
from pipelines.config.home import make_home

_START_SECONDS = 180.0  # its first start makes a database, on a busy machine slowly
_POLL_SECONDS = 0.05
# Schedules and clean-up are a long-lived server's work.
_IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "CANCELLATION_CLEANUP", "PAUSE_EXPIRATIONS")


@dataclass(slots=True)
class LocalApi:
    """A Prefect API on the loopback that lives as long as the process that started it."""

    url_of_this_process: ClassVar[str] = ""  # no page of it can be looked at later

    url: str
    credentials: Credentials  # without them it answers nobody
    _process: subprocess.Popen[bytes]
    _log: Path
    _turn: BaseFileLock

    @classmethod
    def start(cls, home: Path) -> "LocalApi":
        """Start it and return at once; `wait` returns when it answers.

        Of several processes with one home each waits until the one before has started its own:
        two would change the tables of one database at the same time.
        Call it on the main thread: the API ends when the thread that started it ends, so that
        even `kill -9` of a run leaves nothing behind.
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
