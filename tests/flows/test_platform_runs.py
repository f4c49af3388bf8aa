"""Runs that never end, died or never began: what a server makes of them, and a person by hand."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Completed, Pending, Running

from flows.services.deployments import Source
from flows.services.platform import apply, read_platform
from tests.flows.person import wait_until

pytestmark = pytest.mark.slow

# A run's own heartbeats, as its engine sends them: by itself it does so every three minutes.
_HEARTBEATS = """
import sys
import time
from uuid import UUID
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.flow_engine import FlowRunEngine

@flow
def learns() -> None:
    pass

with get_client(sync_client=True) as client:
    engines = [FlowRunEngine(flow=learns, flow_run=client.read_flow_run(UUID(run)))
               for run in sys.argv[2:]]
for _ in range(int(sys.argv[1])):
    for engine in engines:
        engine._emit_flow_run_heartbeat()
    time.sleep(1)
"""


@pytest.fixture
def hurried(prefect_api: str) -> Iterator[Callable[[str, int], None]]:
    """Puts one of the declared automations on the server, with so many seconds for its hours."""
    declared = read_platform()

    def take_off() -> None:
        with get_client(sync_client=True) as client:
            for automation in declared.automations:
                for known in client.read_automations_by_name(automation["name"]):
                    client.delete_automation(known.id)

    def put_on(name: str, seconds: int) -> None:
        (found,) = (each for each in declared.automations if each["name"] == name)
        assert found["trigger"]["within"]
        alone = ({**found, "trigger": {**found["trigger"], "within": seconds}},)
        apply(declared.model_copy(update={"automations": alone}), Source.installed(), {})

    take_off()
    yield put_on
    take_off()


def begun_run(name: str, *states: State[Any]) -> UUID:
    """A run of a deployment in the last of these states."""
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("corpus/corpus")
        run = client.create_flow_run_from_deployment(deployment.id, name=name)
        for state in states:
            client.set_flow_run_state(run.id, state)
    return run.id


def state_of(run: UUID) -> State[Any]:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run).state
    assert state is not None
    return state


def send_heartbeats(count: int, *runs: UUID) -> None:
    """One a second; in a process of its own, as a run's are."""
    command = [sys.executable, "-c", _HEARTBEATS, str(count), *map(str, runs)]
    subprocess.run(command, env=dict(os.environ), check=True)


def test_a_run_that_lives_and_never_ends_is_told(
    hurried: Callable[[str, int], None], webhook: list[dict[str, Any]]
) -> None:
    hurried("bertsmith: a run takes a day", 15)
    hanging, ended = begun_run("hanging", Running()), begun_run("ended", Running(), Completed())
    send_heartbeats(18, hanging, ended)
    wait_until(lambda: bool(webhook))
    (said,) = webhook
    assert said["text"].startswith("Bertsmith: hanging has been running for a day")
    assert state_of(hanging).is_running()
    assert state_of(ended).is_completed()


def test_a_run_whose_process_died_is_called_crashed_and_one_that_lives_is_not(
    hurried: Callable[[str, int], None],
) -> None:
    hurried("bertsmith: a run died", 10)
    dead, waiting = begun_run("dead", Running()), begun_run("waiting", Running())
    alive = begun_run("alive", Running())
    send_heartbeats(2, dead, waiting)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(waiting, AwaitingRetry())
    send_heartbeats(20, alive)
    wait_until(lambda: state_of(dead).is_crashed())
    assert "Start it again to resume it." in str(state_of(dead).message)
    assert state_of(alive).is_running()
    assert state_of(waiting).is_scheduled()
    # One that was only cut off ends as what became of it.
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(dead, Completed())
    assert state_of(dead).is_completed()


def test_a_run_that_its_worker_took_and_never_began_is_called_crashed(
    hurried: Callable[[str, int], None],
) -> None:
    hurried("bertsmith: a run never began", 10)
    taken, begun = begun_run("taken", Pending()), begun_run("begun", Pending(), Running())
    wait_until(lambda: state_of(taken).is_crashed())
    assert state_of(begun).is_running()


def test_a_dead_run_is_ended_by_hand_as_the_runbook_says(prefect_api: str) -> None:
    apply(read_platform(), Source.installed(), {})
    run = begun_run("by hand", Running())
    runbook = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(
        encoding="utf-8"
    )
    (command,) = re.findall(r"`(prefect api POST /flow_runs/ID/set_state [^`]+)`", runbook)
    words = shlex.split(command.replace("ID", str(run)))
    subprocess.run([sys.executable, "-m", *words], env=dict(os.environ), check=True)
    assert state_of(run).is_crashed()
