"""Which process is meant: its id alone may be someone else's by now."""

import functools
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process of one machine, told apart from all earlier and later ones with the same id."""

    pid: int
    started: str  # by a clock that starts with the machine: one that is set moves nothing
    host: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """The process that has this id now. Raises psutil.NoSuchProcess where none has."""
        return cls(pid=pid, started=_started(pid), host=socket.gethostname())

    def is_running(self) -> bool:
        """Whether the very process still runs, as far as this machine can tell."""
        if self.host != socket.gethostname():
            return False
        try:
            same = _started(self.pid) == self.started
            return same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def is_known_dead(self) -> bool:
        """Whether the process ran on this machine and does no more; of others nobody knows."""
        return self.host == socket.gethostname() and not self.is_running()


def _started(pid: int) -> str:
    """When the process started: on Linux the boot and the ticks since then, else its time."""
    if not psutil.LINUX:
        return f"{psutil.Process(pid).create_time():.2f}"
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    ticks = stat.rpartition(")")[2].split()[19]  # field 22 of proc(5); a name may hold anything
    return f"{_boot()} {ticks}"


@functools.cache
def _boot() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
