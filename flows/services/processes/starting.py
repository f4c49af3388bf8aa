"""Starting processes that outlive the command, and stopping exactly those."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from flows.services.processes.health import answers
from flows.services.processes.identity import ProcessIdentity
from flows.services.processes.marks import mark_of, marked_processes
from flows.services.record import ServiceProcess
from pipelines.core.errors import UserError

_POLL_SECONDS = 0.2
_STOP_SECONDS = 15.0
_ROUNDS = 5  # what a dying process starts meanwhile is found by looking again


def start(
    name: str, command: Sequence[str], environment: Mapping[str, str], mark: str, log: Path
) -> ServiceProcess:
    """Start `command` in a session of its own, marked; what it says goes to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            env={**environment, **mark_of(mark, name)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return ServiceProcess(name, ProcessIdentity.of(process.pid), str(log))


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


def stop(mark: str, service: str = "") -> int:
    """End every process of the set `mark`, or of one service of it; returns how many there were.

    The leaders of sessions are asked first: services, and flow runs, which report what became of
    them and end their Ray. Raises UserError where a process does not end.
    """
    doomed = marked_processes(mark, service)
    ended = {process.pid for process in doomed}
    _end([process for process in doomed if _leads(process)])
    for _ in range(_ROUNDS):
        doomed = marked_processes(mark, service)
        if not doomed:
            return len(ended)
        ended.update(process.pid for process in doomed)
        _end(doomed)
    raise UserError(
        f"the processes of `bertsmith up` must end when they are told to, but "
        f"{[process.pid for process in marked_processes(mark, service)]} still run; "
        "look at them with `ps`, end them, and try again"
    )


def _end(doomed: Sequence[psutil.Process]) -> None:
    """Ask, wait, and end those that did not follow."""
    for process in doomed:
        _signal(process.terminate)
    _, stubborn = psutil.wait_procs(doomed, timeout=_STOP_SECONDS)
    for process in stubborn:
        _signal(process.kill)
    psutil.wait_procs(stubborn, timeout=_STOP_SECONDS)


def _leads(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == process.pid
    except ProcessLookupError:
        return False


def _signal(send: Callable[[], None]) -> None:
    try:
        send()
    except psutil.NoSuchProcess:
        return  # it ended by itself
