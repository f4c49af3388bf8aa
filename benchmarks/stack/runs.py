"""Runs of deployments on a platform: starting them, and what becomes of them."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from benchmarks.stack.whole import Stack

_COMMAND_SECONDS = 900.0
_POLL_SECONDS = 2.0  # each look is a load on the servers, too
AWAY = (httpx.HTTPError, PrefectHTTPStatusError)  # what a server without its database answers


@contextmanager
def client_of(stack: Stack) -> Iterator[SyncPrefectClient]:
    """Prefect's own client, let in."""
    settings = {
        PREFECT_API_URL: f"{stack.prefect_url}/api",
        PREFECT_API_AUTH_STRING: stack.credentials.text,
    }
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client


def call(stack: Stack, *command: str, check: bool = True, **environment: str) -> str:
    """What a module of ours or of Prefect's says, as a client of the platform."""
    return _said(stack, ["-m", *command], check, environment)


def bertsmith(stack: Stack, *command: str, check: bool = True, **environment: str) -> str:
    """What a command of ours says, typed by someone who runs the platform."""
    return _said(stack, ["-c", "from flows.cli import main; main()", *command], check, environment)


def _said(stack: Stack, arguments: list[str], check: bool, environment: dict[str, str]) -> str:
    folder = stack.folder / "operator"
    (folder / "home").mkdir(parents=True, exist_ok=True)
    completed = subprocess.run(
        [sys.executable, *arguments],
        env={**stack.clients(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMMAND_SECONDS,
    )
    if check and completed.returncode:
        said = completed.stdout + completed.stderr
        raise RuntimeError(f"{' '.join(arguments)} failed: {said}")
    return completed.stdout + completed.stderr


def trigger(stack: Stack, deployment: str, parameters: dict[str, Any], **options: Any) -> UUID:
    """The id of a new run of the deployment `flow/name`."""
    with client_of(stack) as client:
        found = client.read_deployment_by_name(deployment)
        return client.create_flow_run_from_deployment(found.id, parameters=parameters, **options).id


def read(stack: Stack, flow_run: UUID) -> FlowRun | None:
    """What Prefect says of the run; None where it does not answer just now."""
    try:
        with client_of(stack) as client:
            return client.read_flow_run(flow_run)
    except AWAY:
        return None


def ended(stack: Stack, flow_run: UUID, seconds: float = 3600.0) -> FlowRun:
    """The run, once it has ended.

    Raises RuntimeError where it does not in time, or no worker is left to run it.
    """
    last: FlowRun | None = None

    def is_over() -> bool:
        nonlocal last
        for worker in stack.workers:
            if not worker.is_running():
                said = worker.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{worker.name} has ended; it said: {said}")
        last = read(stack, flow_run)
        return last is not None and last.state is not None and last.state.is_final()

    wait_until(is_over, seconds, f"the run {flow_run} must end")
    assert last is not None
    return last


def wait_until(
    is_so: Callable[[], bool], seconds: float, what: str, every_seconds: float = _POLL_SECONDS
) -> float:
    """How long it took. Raises RuntimeError, saying what was waited for, where it took too long."""
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > seconds:
            raise RuntimeError(f"{what}: waited {seconds:.0f} s in vain")
        time.sleep(every_seconds)
    return time.monotonic() - started
