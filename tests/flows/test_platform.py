"""What a team's Prefect server is told: applied twice it is the same; events become actions."""

import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import AwaitingRetry, Completed, Failed, Pending, Running

from flows.services.deployments import Source, deployments_file
from flows.services.platform.applying import apply
from flows.services.platform.automations import NOTIFY_VARIABLE
from flows.services.platform.declaration import Automation, WorkPool, read_platform
from flows.services.platform.place_block import (
    BertsmithPlace,
    read_place,
    save_place,
)
from flows.services.platform.pools import make_pool
from tests.delivery.composition import COMPOSE, read

pytestmark = pytest.mark.slow

_SECRET = "never-to-be-seen"
_ENVIRONMENT = {
    "BERTSMITH_STORE": "s3://bucket/store",
    "MLFLOW_TRACKING_URI": "http://mlflow:5000",
    "MLFLOW_TRACKING_USERNAME": "bertsmith",
    "MLFLOW_TRACKING_PASSWORD": _SECRET,
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": _SECRET,
}


_PROMOTIONS = """
from flows.reporting.events import tell_of_promotion
from pipelines.registry.promotion import Promotion
for moved in ("classifier candidate", "encoder champion", "classifier champion"):
    kind, alias = moved.split()
    name = "bertsmith-" + kind
    tell_of_promotion(Promotion(name=name, version=2, alias=alias, previous_version=1))
"""


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a chat room's webhook is sent; its address is a secret, as theirs are."""
    heard: list[dict[str, Any]] = []

    class Room(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Room)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(
        NOTIFY_VARIABLE, f"http://127.0.0.1:{server.server_address[1]}/hook-{_SECRET}"
    )
    yield heard
    server.shutdown()
    server.server_close()


def state() -> dict[str, Any]:
    """Everything that was declared, as the server tells it, without the dates of last looks."""
    later = {"updated", "last_polled", "status"}
    with get_client(sync_client=True) as client:
        told: dict[str, Any] = {
            "pools": client.read_work_pools(),
            "deployments": client.read_deployments(),
            "automations": client.read_automations(),
            "blocks": [
                document
                for document in client.read_block_documents(include_secrets=False)
                if document.block_type_name != "Secret"
            ],
        }
    return {
        kind: sorted(
            json.dumps(each.model_dump(mode="json", exclude=later), sort_keys=True)
            for each in found
        )
        for kind, found in told.items()
    }


def test_it_is_applied_twice_and_is_the_same_and_no_secret_shows(
    prefect_api: str, webhook: list[dict[str, Any]]
) -> None:
    platform = read_platform()
    apply(platform, Source.installed(), _ENVIRONMENT)
    once = state()
    assert _SECRET not in json.dumps(once)
    declared = yaml.safe_load(deployments_file().read_text())["deployments"]
    assert len(once["deployments"]) >= len(declared)
    said = apply(platform, Source.installed(), _ENVIRONMENT)
    assert state() == once
    assert not [sentence for sentence in said if "is new" in sentence]
    assert _SECRET not in " ".join(said)
    with get_client(sync_client=True) as client:
        pools = {each.name: each for each in client.read_work_pools()}
        assert pools["bertsmith-training"].concurrency_limit == 1
        found = client.read_deployment_by_name("corpus/corpus")
        assert found.work_pool_name == "bertsmith-data"

        # What a person changed stays.
        from prefect.client.schemas.actions import WorkPoolUpdate

        client.update_work_pool("bertsmith-data", WorkPoolUpdate(concurrency_limit=9))
        apply(platform, Source.installed(), {})
        assert client.read_work_pool("bertsmith-data").concurrency_limit == 9


def test_where_the_code_comes_from_stays_unless_it_is_named(prefect_api: str) -> None:
    def source_of_corpus() -> tuple[Any, Any]:
        with get_client(sync_client=True) as client:
            found = client.read_deployment_by_name("corpus/corpus")
        return found.pull_steps, found.job_variables.get("image")

    platform = read_platform()
    git, image = Source.git("https://example.org/x", "v1"), Source.image("registry/bertsmith:1")
    apply(platform, git, {})
    apply(platform, None, {})
    assert source_of_corpus()[0] == git.pull_steps
    apply(platform, image, {})
    apply(platform, None, {})
    assert source_of_corpus() == ([], "registry/bertsmith:1")
    apply(platform, git, {})
    apply(platform, Source.installed(), {})
    assert source_of_corpus()[0] == []


def test_each_declared_deployment_has_a_pool() -> None:
    platform = read_platform()
    for declared in yaml.safe_load(deployments_file().read_text())["deployments"]:
        assert platform.pool_of(declared["tags"]) in {pool.name for pool in platform.work_pools}


def test_what_is_not_given_again_stays_in_the_block(prefect_api: str) -> None:
    save_place(_ENVIRONMENT)
    save_place({"AWS_SECRET_ACCESS_KEY": "another"})  # a rotation
    place = read_place()
    assert isinstance(place, BertsmithPlace)
    variables = place.variables()
    assert variables["AWS_SECRET_ACCESS_KEY"] == "another"
    assert variables["MLFLOW_TRACKING_PASSWORD"] == _SECRET
    assert "another" not in repr(place)
    assert not save_place({})


def test_an_automation_does_one_thing() -> None:
    for more, found in (({}, "none of them"), ({"notify": "x", "crash": "y"}, "notify and crash")):
        with pytest.raises(ValueError, match=f"one of notify, run and crash, found {found}"):
            Automation.model_validate({"name": "a", "when": {"expect": ["x"]}, **more})


def test_code_from_an_image_and_from_git() -> None:
    assert Source.image("registry/bertsmith:1").job_variables == {"image": "registry/bertsmith:1"}
    (step,) = Source.git("https://example.org/x", "v1", "token").pull_steps
    (values,) = step.values()
    assert values["access_token"] == "{{ prefect.blocks.secret.token }}"
    assert values["branch"] == "v1"


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


def wait_for(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_failed_run_writes_to_the_webhook_once(
    prefect_api: str, webhook: list[dict[str, Any]]
) -> None:
    apply(read_platform(), Source.installed(), {})
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("corpus/corpus")
        run = client.create_flow_run_from_deployment(deployment.id, name="of-a-webhook")
        client.set_flow_run_state(run.id, Running())
        client.set_flow_run_state(run.id, Failed(message="the disk is full"))
    wait_for(lambda: bool(webhook))
    assert webhook == [{"text": "Bertsmith: of-a-webhook is Failed: the disk is full"}]


def test_a_new_champion_starts_the_batch_prediction_once_a_person_switched_it_on(
    prefect_api: str,
) -> None:
    platform = read_platform()
    (declared,) = (each for each in platform.automations if each.run)
    with get_client(sync_client=True) as client:
        for left in client.read_automations_by_name(declared.name):  # by the tests before
            client.delete_automation(left.id)
        notes = apply(platform, None, {})
        (note,) = (note for note in notes if declared.name in note)
        assert "is new and switched off" in note
        assert "name these files in the parameters of the deployment batch-prediction" in note
        (made,) = client.read_automations_by_name(declared.name)
        assert not made.enabled
        client.resume_automation(made.id)
        assert not [note for note in apply(platform, None, {}) if declared.name in note]
        assert client.read_automations_by_name(declared.name)[0].enabled
        deployment = client.read_deployment_by_name("batch-prediction/batch-prediction").id

        def runs() -> int:
            chosen = DeploymentFilter.model_validate({"id": {"any_": [deployment]}})
            return len(client.read_flow_runs(deployment_filter=chosen))

        # In a process of its own, as a run's: Prefect sends events by the settings of a process.
        subprocess.run([sys.executable, "-c", _PROMOTIONS], env=dict(os.environ), check=True)
        wait_for(lambda: runs() > 0)
        time.sleep(2)
        assert runs() == 1  # a candidate is no champion, and an encoder answers nothing


@pytest.fixture
def hurried(prefect_api: str) -> Iterator[Callable[[str, int], None]]:
    """Puts one of the declared automations on the server, with so many seconds for its hours."""
    declared = read_platform()

    def take_off() -> None:
        with get_client(sync_client=True) as client:
            for automation in declared.automations:
                for known in client.read_automations_by_name(automation.name):
                    client.delete_automation(known.id)

    def put_on(name: str, seconds: int) -> None:
        (found,) = (each for each in declared.automations if each.name == name)
        assert found.when.silent_seconds
        when = found.when.model_copy(update={"silent_seconds": seconds})
        alone = (found.model_copy(update={"when": when}),)
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
    wait_for(lambda: bool(webhook))
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
    wait_for(lambda: state_of(dead).is_crashed())
    assert "Started again, it goes on where it stopped." in str(state_of(dead).message)
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
    wait_for(lambda: state_of(taken).is_crashed())
    assert state_of(begun).is_running()


def test_a_dead_run_is_ended_by_hand_as_the_runbook_says(prefect_api: str) -> None:
    apply(read_platform(), Source.installed(), {})
    run = begun_run("by hand", Running())
    runbook = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"`(prefect api POST /flow_runs/ID/set_state [^`]+)`", runbook)
    words = shlex.split(command.replace("ID", str(run)))
    subprocess.run([sys.executable, "-m", *words], env=dict(os.environ), check=True)
    assert state_of(run).is_crashed()


def test_a_worker_that_is_ahead_waits_for_its_pool(prefect_api: str, tmp_path: Path) -> None:
    name = "of-an-early-worker"
    command = read(COMPOSE)["services"]["worker-data"]["command"]
    words = [name if word == "bertsmith-data" else word for word in command]
    worker = subprocess.Popen(
        [sys.executable, "-m", *(word for word in words if word != "--with-healthcheck")],
        env={**os.environ, "PREFECT_WORKER_HEARTBEAT_SECONDS": "1",
             "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert worker.stdout is not None
        next(line for line in worker.stdout if "not found" in line)
        with get_client(sync_client=True) as client:
            with pytest.raises(ObjectNotFound):
                client.read_work_pool(name)
            assert make_pool(client, WorkPool(name=name, tags=("data",), concurrency_limit=1))
            wait_for(lambda: bool(client.read_workers_for_work_pool(name)))
    finally:
        worker.terminate()
        worker.communicate(timeout=60)
