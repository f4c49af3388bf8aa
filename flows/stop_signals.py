"""Signals that ask a command to stop: each raises KeyboardInterrupt, so that it ends in order.

SIGINT is Ctrl-C, SIGTERM what schedulers, `timeout` and containers send, SIGHUP a terminal that
closes. `timeout` and shells signal the process and then its group: a signal within a second of the
one before is the same stop, and no wish to leave at once.
"""

import signal
import threading
import time
from typing import Any

_SAME_STOP_SECONDS = 1.0
_last_stop = float("-inf")  # of this process, on the clock of `time.monotonic`


def stop_in_order() -> None:
    """Install the handlers in a process that runs one command; ignored signals stay ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _stop)


def stop_in_order_inside_flow() -> None:
    """Install SIGTERM's handler again where the command had one: Prefect replaced it.

    Prefect's own raises at each signal. It puts the command's back when the flow ends.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGTERM, _stop)


def _stop(number: int, frame: Any) -> None:
    global _last_stop
    before, _last_stop = _last_stop, time.monotonic()
    if _last_stop - before >= _SAME_STOP_SECONDS:
        raise KeyboardInterrupt
