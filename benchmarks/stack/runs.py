"""Runs of deployments on a platform: start them, and wait for them."""

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
_POLL_SECONDS = 2.0  # each poll is a load on the servers, too
UNAVAILABLE = (httpx.HTTPError, PrefectHTTPStatusError)  # errors of a server without its database


@contextmanager
def client_of(stack: Stack) -> Iterator[SyncPrefectClient]:
    """Prefect's own client, with credentials."""
    settings = {
        PREFECT_API_URL: f"{stack.prefect_url}/api",
        PREFECT_API_AUTH_STRING: stack.login.text,
    }
    with temporary_settings(settings), get_client(sync_client=True) as client:
        yield client


def call(stack: Stack, *command: str, check: bool = True, **environment: str) -> str:
    """Run a module of ours or of Prefect as a client of the platform; returns its output."""
    return _run(stack, ["-m", *command], check, environment)


def _run(stack: Stack, arguments: list[str], check: bool, environment: dict[str, str]) -> str:
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
    output = completed.stdout + completed.stderr
    if check and completed.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {output}")
    return output


def trigger(stack: Stack, deployment: str, parameters: dict[str, Any], **options: Any) -> UUID:
    """Start a run of the deployment `flow/name`; returns its id."""
    with client_of(stack) as client:
        found = client.read_deployment_by_name(deployment)
        return client.create_flow_run_from_deployment(found.id, parameters=parameters, **options).id


def read(stack: Stack, flow_run: UUID) -> FlowRun | None:
    """The run from Prefect; None if the server does not answer."""
    try:
        with client_of(stack) as client:
            return client.read_flow_run(flow_run)
    except UNAVAILABLE:
        return None


def wait_for_run(stack: Stack, flow_run: UUID, seconds: float = 3600.0) -> FlowRun:
    """Wait for the end of a run; returns it.

    Raises RuntimeError if it does not end in time, or if a worker has ended.
    """
    last: FlowRun | None = None

    def is_over() -> bool:
        nonlocal last
        for worker in stack.workers:
            if not worker.is_running():
                output = worker.log.read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{worker.name} has ended; its output: {output}")
        last = read(stack, flow_run)
        return last is not None and last.state is not None and last.state.is_final()

    wait_until(is_over, seconds, f"the run {flow_run} must end")
    assert last is not None
    return last


def wait_until(
    is_so: Callable[[], bool], seconds: float, what: str, every_seconds: float = _POLL_SECONDS
) -> float:
    """The seconds until `is_so`. Raises RuntimeError with `what` if it takes too long."""
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > seconds:
            raise RuntimeError(f"{what}: still not after {seconds:.0f} s")
        time.sleep(every_seconds)
    return time.monotonic() - started
