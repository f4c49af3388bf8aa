"""Processes that outlive a command: start them, find them again, stop exactly those.

All descendants of a service inherit its mark, a variable of the environment, so that they are found
even if their parents died. A program that starts without this environment, or hides it by setting a
title for `ps`, is found as a child or in the session of a marked process.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from pipelines.config.errors import UserError

MARK_VARIABLE = "BERTSMITH_SERVICE"
_STOP_SECONDS = 15.0
_ROUNDS = 5  # a stopping process may start others


def start(
    name: str, command: Sequence[str], environment: Mapping[str, str], mark: str, log: Path
) -> int:
    """Start `command` in a session of its own, marked, its output in `log`; returns its id."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            env={**environment, MARK_VARIABLE: f"{mark}:{name}"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # Commands in the background ignore SIGINT, with which Prefect's worker stops itself.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return process.pid


def is_running(pid: int, mark: str, name: str) -> bool:
    """Whether this id still belongs to the process that was started for the service `name`.

    Another process with the id has another mark, or none.
    """
    try:
        return _mark(psutil.Process(pid)) == f"{mark}:{name}"
    except psutil.NoSuchProcess:
        return False


def marked_processes(mark: str, name: str = "") -> list[psutil.Process]:
    """All living processes with the mark, or those of one service; never this process."""
    prefix = f"{mark}:{name}"
    found = [process for process in psutil.process_iter() if _mark(process).startswith(prefix)]
    family = {process.pid: process for process in found}
    for process in found:
        family.update((child.pid, child) for child in _children(process))
    sessions = {_session(pid) for pid in family} - {None, _session(os.getpid())}
    for process in psutil.process_iter():
        if _session(process.pid) in sessions:
            family[process.pid] = process
    family.pop(os.getpid(), None)
    return [process for process in family.values() if _is_alive(process)]


def stop(mark: str, name: str = "") -> None:
    """Stop all processes with the mark, or those of one service.

    Session leaders get the signal first: services, and flow runs, which report their end and stop
    their Ray. Raises UserError if a process does not end.
    """
    _end([each for each in marked_processes(mark, name) if _session(each.pid) == each.pid])
    for _ in range(_ROUNDS):
        remaining = marked_processes(mark, name)
        if not remaining:
            return
        _end(remaining)
    raise UserError(
        f"the processes {[process.pid for process in marked_processes(mark, name)]} of `bertsmith "
        "up` do not end; look at them with `ps`, end them, and try again"
    )


def _end(processes: Sequence[psutil.Process]) -> None:
    """Terminate, wait, and kill those that remain."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, remaining = psutil.wait_procs(processes, timeout=_STOP_SECONDS)
    for process in remaining:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(remaining, timeout=_STOP_SECONDS)


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK_VARIABLE, "")
    except (psutil.Error, OSError):  # it ended, or it belongs to another user
        return ""


def _children(process: psutil.Process) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        yield from process.children(recursive=True)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
