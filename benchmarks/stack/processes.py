"""A server in its own process: started, waited for, stopped with all its children."""

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_START_SECONDS = 600.0  # on a busy machine, imports take minutes
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.2


class Server:
    """One program that runs until it is stopped; its output is in its log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        user: str | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Start it and wait until it is ready. Raises RuntimeError with its output."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
                group=_group_of(self._user),
                extra_groups=None if self._user is None else [],
            )
        deadline = time.monotonic() + _START_SECONDS
        while not is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                output = self.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.name} did not start; its output: {output}")
            time.sleep(_POLL_SECONDS)

    @property
    def pid(self) -> int:
        """The id of the started process. Raises RuntimeError if there is none."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def resident_bytes(self) -> int:
        """Resident memory of it and all its children; 0 if it does not run."""
        total = 0
        for process in self.processes():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def stop(self) -> None:
        """Terminate it, and kill what does not end."""
        if self._process is None:
            return
        processes = self.processes()
        self._process.terminate()
        _, stubborn = psutil.wait_procs(processes, timeout=_STOP_SECONDS)
        for process in stubborn:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def kill(self) -> None:
        """Send SIGKILL to this process only."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def processes(self) -> list[psutil.Process]:
        """All its running processes."""
        try:
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:  # what it left behind is still in its session
            return [each for each in psutil.process_iter() if _session(each.pid) == self.pid]


def ordinary_user(*names: str) -> str | None:
    """For servers that refuse to run as root: the first of these users if this is root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in (*names, "nobody") if name in known)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _group_of(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


def own_folder(folder: Path, user: str | None) -> Path:
    """Create `folder`; it belongs to `user` if one is given."""
    folder.mkdir(parents=True)
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    return folder
