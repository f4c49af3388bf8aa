"""Runs that died are distinguished from live ones, against a real Prefect API."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Cancelling, Pending, Running, State

from flows.services.reconciliation import end_dead_flow_runs, is_over
from flows.stopping import is_dead, recorded_run

POOL = "reconciled"


@flow
def training() -> None:
    """A flow that nothing runs here: the tests only tell the API of it."""


@task
def step() -> None:
    """A task of it."""


@pytest.fixture
def client(prefect_api: str) -> Iterator[SyncPrefectClient]:
    """A client of the session's Prefect API, with a work pool."""
    with get_client(sync_client=True) as made:
        with suppress(ObjectAlreadyExists):
            made.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        yield made


@pytest.fixture
def of_worker(client: SyncPrefectClient) -> Callable[[], FlowRun]:
    """Flow runs of a deployment with one slot."""
    flow_id = client.create_flow(training)
    deployment = client.create_deployment(
        flow_id, f"one-slot-{uuid4()}", work_pool_name=POOL, concurrency_limit=1
    )
    return lambda: client.create_flow_run_from_deployment(deployment)


def alone(client: SyncPrefectClient) -> FlowRun:
    run = client.create_flow_run(training, state=Pending())
    put(client, run, Running())
    return run


def put(client: SyncPrefectClient, run: FlowRun, *states: State) -> None:
    for state in states:
        assert client.set_flow_run_state(run.id, state).status.value == "ACCEPT"


def state_of(client: SyncPrefectClient, run_id: UUID) -> str:
    state = client.read_flow_run(run_id).state
    assert state is not None
    return state.name


def killed_while_it_worked_on(home: Path, run: FlowRun) -> None:
    """Leave the record that a real process leaves when it is killed."""
    code = (
        "import os, signal, sys\n"
        "from flows.stopping import recorded_run\n"
        "with recorded_run(sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "BERTSMITH_HOME": str(home)}
    subprocess.run([sys.executable, "-c", code, str(run.id)], env=environment, check=False)
    assert is_dead(home, str(run.id))


def end_dead(home: Path, *, worker_is_gone: bool) -> list[str]:
    return end_dead_flow_runs(home, POOL, worker_is_gone=worker_is_gone, why="It was killed.")


def test_a_run_whose_process_was_killed_is_crashed_with_its_tasks(
    client: SyncPrefectClient, own_home: Path
) -> None:
    run = alone(client)
    task_run = client.create_task_run(step, run.id, "0", state=Running())
    killed_while_it_worked_on(own_home, run)
    assert end_dead(own_home, worker_is_gone=False) == [run.name]
    ended = client.read_flow_run(run.id).state
    assert ended is not None
    assert (ended.name, ended.message) == (
        "Crashed", "It was killed. Start it again to resume it.",
    )  # fmt: skip
    task_state = client.read_task_run(task_run.id).state
    assert task_state is not None
    assert task_state.name == "Crashed"
    assert is_dead(own_home, str(run.id)) is None
    assert is_over(own_home, str(run.id))


def test_a_live_run_is_left_alone(client: SyncPrefectClient, own_home: Path) -> None:
    run = alone(client)
    with recorded_run(str(run.id)):
        assert end_dead(own_home, worker_is_gone=True) == []
        assert not is_over(own_home, str(run.id))
    assert state_of(client, run.id) == "Running"
    assert list((own_home / "runs").glob("*/*")) == []


def test_a_run_of_another_machine_is_left_alone(client: SyncPrefectClient, own_home: Path) -> None:
    recorded, never_heard_of = alone(client), alone(client)
    killed_while_it_worked_on(own_home, recorded)
    (here,) = (own_home / "runs").iterdir()
    here.rename(here.with_name("elsewhere.example"))
    assert end_dead(own_home, worker_is_gone=True) == []
    assert state_of(client, recorded.id) == state_of(client, never_heard_of.id) == "Running"


@pytest.mark.parametrize("reached", ["Pending", "Running", "Cancelling"])
def test_a_dead_run_of_the_worker_gives_its_slot_back(
    client: SyncPrefectClient,
    of_worker: Callable[[], FlowRun],
    own_home: Path,
    reached: str,
) -> None:
    first, second, third = of_worker(), of_worker(), of_worker()
    put(client, first, Pending())
    if reached != "Pending":
        put(client, first, Running())
        killed_while_it_worked_on(own_home, first)
    if reached == "Cancelling":
        put(client, first, Cancelling())
    assert client.set_flow_run_state(second.id, Pending()).status.value != "ACCEPT"
    assert end_dead(own_home, worker_is_gone=True) == [first.name]
    assert state_of(client, first.id) == ("Cancelled" if reached == "Cancelling" else "Crashed")
    put(client, third, Pending(), Running())


def test_a_run_that_the_living_worker_is_about_to_start_is_left_alone(
    client: SyncPrefectClient, of_worker: Callable[[], FlowRun], own_home: Path
) -> None:
    run = of_worker()
    put(client, run, Pending())
    assert end_dead(own_home, worker_is_gone=False) == []
    assert state_of(client, run.id) == "Pending"


def test_a_run_that_another_machines_worker_computes_is_left_alone(
    client: SyncPrefectClient, of_worker: Callable[[], FlowRun], own_home: Path
) -> None:
    run = of_worker()
    put(client, run, Pending(), Running())
    assert run.name not in end_dead(own_home, worker_is_gone=True)
    assert state_of(client, run.id) == "Running"
