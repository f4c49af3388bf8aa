"""Waiting for what another process does, with a limit."""

import time
from collections.abc import Callable
from typing import Any


def wait_for(
    condition: Callable[[], Any], what: str = "it", seconds: float = 600, interval: float = 0.1
) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(interval)
    return value
