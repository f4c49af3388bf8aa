"""A run that was told to go and is scheduled again, while its last process may still be saving."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import get_client

from pipelines.artifacts.attempts.claims import LEASE_SECONDS

_STOP_SECONDS = 30.0  # after which Prefect kills a process that it told to go
_CLOCKS_SECONDS = 10.0  # by which clocks of two machines may differ


def wait_for_last_try(flow_run_id: UUID, note: Callable[[str], None]) -> None:
    """Wait, at most for 100 s, until the last process can hold no claim any more.

    Prefect schedules a run again before its process has ended. On an object store the next one
    would take what is claimed for somebody else's work, and begin anew beside it.
    """
    seconds = seconds_to_wait(flow_run_id, datetime.now(UTC))
    if seconds > 0:
        note(f"waiting {seconds:.0f} s: the process that was told to go may still be saving")
        time.sleep(seconds)


def seconds_to_wait(flow_run_id: UUID, now: datetime) -> float:
    """How long the last process may still hold a claim; 0 for a run that was never told to go."""
    with get_client(sync_client=True) as client:
        states = client.read_flow_run_states(flow_run_id)
    told = [state.timestamp for state in states if state.name == "AwaitingRetry"]
    if not told:
        return 0.0
    over = max(told) + timedelta(seconds=_STOP_SECONDS + LEASE_SECONDS + _CLOCKS_SECONDS)
    return max(0.0, (over - now).total_seconds())
