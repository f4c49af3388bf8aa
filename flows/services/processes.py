"""Starting processes that outlive the command, and stopping exactly those."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from flows.services.record import ServiceProcess
from pipelines.core.errors import UserError

_POLL_SECONDS = 0.2
_STOP_SECONDS = 15.0


def start(
    name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
) -> ServiceProcess:
    """Start `command` in a session of its own; what it says goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    started = psutil.Process(process.pid).create_time()
    return ServiceProcess(name=name, pid=process.pid, started=started, log=str(log))


def wait_until_it_answers(service: ServiceProcess, url: str, seconds: float) -> None:
    """Return when `url` answers; UserError, naming the log, where it does not in time."""
    deadline = time.monotonic() + seconds
    while not answers(url):
        if not service.is_running() or time.monotonic() > deadline:
            raise UserError(
                f"{service.name} must answer at {url} within {seconds:.0f} s, but it did not; "
                f"{service.log} says why"
            )
        time.sleep(_POLL_SECONDS)


def answers(url: str) -> bool:
    """Whether something answers at `url` with success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def stop(services: Sequence[ServiceProcess]) -> list[ServiceProcess]:
    """End the processes that still run, with all their descendants; returns those that did."""
    running = [service for service in services if service.is_running()]
    doomed = [process for service in running for process in _with_descendants(service.pid)]
    for process in doomed:
        _signal(process.terminate)
    _, stubborn = psutil.wait_procs(doomed, timeout=_STOP_SECONDS)
    for process in stubborn:
        _signal(process.kill)
    psutil.wait_procs(stubborn, timeout=_STOP_SECONDS)
    return running


def _with_descendants(pid: int) -> list[psutil.Process]:
    """The process and all it started: flow runs of a worker lead sessions of their own."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return  # it ended by itself
