"""Finding what a service started, however its parents died: all of it carries the mark.

The mark is an environment variable, which every descendant inherits. A program may start another
without its environment, or overwrite the memory where the system shows it (for a title in `ps`):
such a one is found as a child, or as a member of the session, of one that shows the mark.
"""

import os
from collections.abc import Iterator, Mapping

import psutil

MARK_VARIABLE = "BERTSMITH_SERVICE"


def mark_of(mark: str, service: str) -> Mapping[str, str]:
    """The variable that the service and all its descendants carry."""
    return {MARK_VARIABLE: f"{mark}:{service}"}


def marked_processes(mark: str, service: str = "") -> list[psutil.Process]:
    """Every living process of the set `mark`, or of one service of it; never this one."""
    prefix = f"{mark}:{service}"
    found = [process for process in psutil.process_iter() if _mark(process).startswith(prefix)]
    family = {process.pid: process for process in found}
    for process in found:
        family.update((child.pid, child) for child in _children(process))
    sessions = {_session(pid) for pid in family} - {None, _session(os.getpid())}
    for process in psutil.process_iter():
        if _session(process.pid) in sessions:
            family[process.pid] = process
    family.pop(os.getpid(), None)
    return [process for process in family.values() if _lives(process)]


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get(MARK_VARIABLE, "")
    except (psutil.Error, OSError):  # it ended, or it is another person's
        return ""


def _children(process: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield from process.children(recursive=True)
    except psutil.NoSuchProcess:
        return


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
