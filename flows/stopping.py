"""The process of a flow run: how it stops and resumes.

SIGINT is Ctrl-C, SIGTERM what schedulers, `timeout` and containers send, SIGHUP a terminal that
closes; each raises KeyboardInterrupt. `timeout` and shells signal the process and then its group: a
signal within a second of the previous one counts as the same stop.

Serializers and drivers turn a KeyboardInterrupt that falls into them into an error of their own:
what fails after a stop was stopped.

Prefect is imported only inside functions: commands install the handlers before they import it.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun


_SAME_STOP_SECONDS = 1.0
_last_stop = float("-inf")  # of this process, on the clock of `time.monotonic`
_handled: set[int] = set()  # signals whose handler this process installed
_stopped: set[str] = set()  # flow runs of this process


def install_stop_handlers() -> None:
    """Install the handlers in a process that runs one command; ignored signals stay ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)
            _handled.add(number)


def _stop(number: int, frame: Any) -> None:
    global _last_stop
    before, _last_stop = _last_stop, time.monotonic()
    if _last_stop - before >= _SAME_STOP_SECONDS:
        raise KeyboardInterrupt


@contextmanager
def stops_kept() -> Iterator[None]:
    """An error that leaves after a stop came in is raised as the KeyboardInterrupt that it was."""
    before = _last_stop
    try:
        yield
    except Exception as error:
        if _last_stop == before:
            raise
        raise KeyboardInterrupt from error


@contextmanager
def flow_in_progress() -> Iterator[None]:
    """Every flow works inside this: signals stop it as they stop the command, and it is remembered.

    Prefect replaced the command's handler of SIGTERM by one that raises at each signal; it restores
    the command's when the flow ends. A flow that no command runs keeps Prefect's.
    """
    from prefect.exceptions import TerminationSignal
    from prefect.runtime import flow_run

    if signal.SIGTERM in _handled and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)
    try:
        with stops_kept():
            yield
    except (KeyboardInterrupt, TerminationSignal):
        _stopped.add(str(flow_run.id))
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
