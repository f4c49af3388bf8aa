"""A run that someone stopped is cancelled, and no crash: on Prefect's page, too."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled

_stopped: set[str] = set()  # flow runs of this process


@contextmanager
def stops_noted(flow_run_id: str | None) -> Iterator[None]:
    """Remember of this flow run that Ctrl-C or a signal ended the block; raises it again."""
    try:
        yield
    except (KeyboardInterrupt, TerminationSignal):
        _stopped.add(str(flow_run_id))
        raise


def cancel_if_stopped(flow: Any, flow_run: FlowRun, state: Any) -> None:
    """A hook for what Prefect takes for a crash: where someone stopped the run it is cancelled."""
    if str(flow_run.id) not in _stopped:
        return
    message = "Stopped. Started again, it goes on where it stopped."
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)
