"""The identity of a process: its id alone may belong to another one by now."""

import os
import platform
from functools import cache
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict, StrictInt

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")


class ProcessIdentity(BaseModel):
    """A process, distinct from all earlier and later ones with the same id."""

    model_config = ConfigDict(frozen=True)

    machine: str  # one start of a machine, one container of it: there its id means something
    host: str  # for people
    pid: int
    started: StrictInt  # by a clock that starts with the machine: one that is set moves nothing

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity":
        """The process that has this id now. Raises psutil.NoSuchProcess where none has."""
        return cls(machine=_machine(), host=platform.node(), pid=pid, started=_started(pid))

    @classmethod
    def current(cls) -> "ProcessIdentity":
        """The process that asks."""
        return cls.of(os.getpid())

    def is_alive(self) -> bool | None:
        """Whether the very process still runs; None where it belongs to another machine."""
        if self.machine != _machine():
            return None
        try:
            is_same = _started(self.pid) == self.started
            return is_same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True


def _started(pid: int) -> int:
    """When the process started: on Linux in ticks since the boot, else in its own time."""
    if not psutil.LINUX:
        return round(100 * psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(pid) from error
    return int(stat.rpartition(")")[2].split()[19])  # field 22 of proc(5); names hold anything


@cache
def _machine() -> str:
    if _BOOT_ID.exists() and _PID_NAMESPACE.exists():
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.readlink()}"
    return f"{platform.node()}/{psutil.boot_time():.0f}"
