"""Processes that outlive a command: starting them, finding them again, stopping exactly those.

All that a service starts inherits its mark, a variable of the environment, so that it is found
however its parents died. A program may start another without its environment, or overwrite the
memory where the system shows it (for a title in `ps`): such a one is found as a child, or as a
member of the session, of one that shows the mark.
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
_ROUNDS = 5  # what a dying process starts meanwhile is found by looking again


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
            # A command in the background ignores SIGINT, which Prefect's worker stops itself with.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    return process.pid


def is_running(pid: int, mark: str, name: str) -> bool:
    """Whether the process with this id is the one that was started for the service `name`.

    An id that belongs to another process by now has another mark, or none.
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
    """End all processes with the mark, or those of one service.

    The leaders of sessions are asked first: services, and flow runs, which report what became of
    them and end their Ray. Raises UserError where a process does not end.
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
    """Ask, wait, and kill those that did not follow."""
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
    except (psutil.Error, OSError):  # it ended, or it is another person's
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
