"""The process of a flow run: the lock that shows it is alive, and how it stops and resumes.

SIGINT is Ctrl-C, SIGTERM what schedulers, `timeout` and containers send, SIGHUP a terminal that
closes; each raises KeyboardInterrupt. `timeout` and shells signal the process and then its group: a
signal within a second of the previous one counts as the same stop.

Prefect is imported only inside functions: commands install the handlers before they import it.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


_SAME_STOP_SECONDS = 1.0
_KILL_SECONDS = 30.0  # after which Prefect kills a process that it asked to stop
_CLOCKS_SECONDS = 10.0  # by which clocks of two machines may differ
_last_stop = float("-inf")  # of this process, on the clock of `time.monotonic`
_handled: set[int] = set()  # signals whose handler this process installed
_stopped: set[str] = set()  # flow runs of this process


def stop_in_order() -> None:
    """Install the handlers in a process that runs one command; ignored signals stay ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
            _handled.add(number)


def stop_in_order_inside_flow() -> None:
    """Install SIGTERM's handler again if the command had one: Prefect replaced it.

    Prefect's handler raises at each signal; it restores the command's when the flow ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.SIGTERM in _handled:
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: Any) -> None:
    global _last_stop
    before, _last_stop = _last_stop, time.monotonic()
    if _last_stop - before >= _SAME_STOP_SECONDS:
        raise KeyboardInterrupt


def enter_flow() -> None:
    """Restore the command's stop handler, if it has one, and use the deployment's runtime block."""
    from prefect.runtime import deployment

    stop_in_order_inside_flow()
    if deployment.id is not None:  # a run that a person started here has its own environment
        from flows.services.runtime_block import read_runtime, use_runtime

        use_runtime(read_runtime())


@contextmanager
def flow_in_progress() -> Iterator[None]:
    """Every flow works inside this: the run's lock is held, and a stop is remembered."""
    from prefect.runtime import flow_run

    with note_stops(flow_run.id), recorded_run(flow_run.id):
        yield


@contextmanager
def recorded_run(flow_run_id: str | None) -> Iterator[None]:
    """Hold the run's lock in the home ($BERTSMITH_HOME) while the block runs.

    The system releases it however the process ends.
    """
    home = os.environ.get("BERTSMITH_HOME")
    if not home or not flow_run_id:
        yield  # no home, hence no services that would ask
        return
    path = lock_path(Path(home), flow_run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with FileLock(draft):
        draft.rename(path)  # it never shows unlocked
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def is_dead(home: Path, flow_run_id: str) -> bool | None:
    """Whether the process that worked on the run is gone; None if none on this machine did."""
    path = lock_path(home, flow_run_id)
    if not path.is_file():
        return None
    try:
        with FileLock(path, timeout=0):
            return True
    except Timeout:
        return False


def lock_path(home: Path, flow_run_id: str) -> Path:
    """The run's lock, by machine: a machine cannot tell whether another's process is alive."""
    return home / "runs" / socket.gethostname() / f"{flow_run_id}.lock"


@contextmanager
def note_stops(flow_run_id: str | None) -> Iterator[None]:
    """Remember that Ctrl-C or a signal ended this flow run; raises it again."""
    from prefect.exceptions import TerminationSignal

    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        _stopped.add(str(flow_run_id))
        raise


def cancel_if_stopped(flow: Any, flow_run: "FlowRun", state: Any) -> None:
    """A hook for crashed runs: a run that was stopped is cancelled instead."""
    if str(flow_run.id) not in _stopped:
        return
    from prefect.client.orchestration import get_client
    from prefect.states import Cancelled

    message = "Stopped. Run it again to resume."
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)
