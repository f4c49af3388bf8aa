"""Who holds something: one process of one machine, and whether it still lives."""

import os
import platform
from functools import lru_cache
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PID_NAMESPACE = Path("/proc/self/ns/pid")
_CLOCK_TOLERANCE_SECONDS = 2.0  # start times follow the clock, and a clock is set now and then


class Owner(BaseModel):
    """A process, told apart from any later one with the same number."""

    model_config = ConfigDict(frozen=True)

    machine: str
    host: str  # for people
    pid: int
    started: float

    @classmethod
    def this_process(cls) -> "Owner":
        """The process that asks."""
        return cls(
            machine=_machine(),
            host=platform.node(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
        )

    def is_alive(self) -> bool | None:
        """Whether the process still runs; None where it belongs to another machine."""
        if self.machine != _machine():
            return None
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(process.create_time() - self.started) < _CLOCK_TOLERANCE_SECONDS
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True


@lru_cache(maxsize=1)
def _machine() -> str:
    """Process numbers mean something within this: one start of a machine, one container of it."""
    if _BOOT_ID.exists() and _PID_NAMESPACE.exists():
        return f"{_BOOT_ID.read_text().strip()}/{_PID_NAMESPACE.readlink()}"
    return f"{platform.node()}/{psutil.boot_time():.0f}"
