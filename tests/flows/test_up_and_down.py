"""Both servers and the worker as a person meets them: in shells, killed in part, stopped midway."""

import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.services.credentials import (
    MLFLOW_SERVER,
    NAMES,
    PREFECT_SERVER,
    WORKER,
    make_credentials,
    read_record,
)
from flows.services.health import free_port, is_free
from flows.services.processes import marked_processes
from tests.flows.person import (
    BERTSMITH,
    CHECKOUT,
    OWN_VARIABLES,
    STATES,
    Person,
    status,
    train_endlessly,
    wait_until,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    """Someone for whom `bertsmith up` runs."""
    someone = Person(tmp_path / "a home", free_port(), free_port())
    try:
        someone.up()
        mark = someone.record().mark
        yield someone
    finally:
        someone.down()
    assert marked_processes(mark) == []
    assert is_free(someone.prefect_port)
    assert is_free(someone.mlflow_port)
    assert read_record(someone.home) is None


@pytest.fixture
def small(small_recipe: Path) -> dict[str, Any]:
    """The small recipe."""
    return dict(yaml.safe_load(small_recipe.read_text()))


@pytest.fixture
def endless(small: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose pretraining outlasts every test."""
    small["pretraining"] |= {"num_steps": 1_000_000, "evaluate_every_steps": 100_000}
    return small


def test_a_deployment_completes_from_a_new_shell(person: Person, small: dict[str, Any]) -> None:
    assert "running already" in person.up()
    corpus = {key: small[key] for key in ("name", "corpus")}
    assert "Completed" in person.trigger("corpus/corpus", corpus, "--watch")
    assert list((person.home / "store" / "corpus").glob("*/manifest.json"))
    assert list((person.home / "runs").glob("*/*")) == []

    password = make_credentials(person.home).password
    for log in (person.home / "logs").iterdir():
        assert password not in log.read_text()
    for process in marked_processes(person.record().mark):
        assert password not in " ".join(process.cmdline())


def test_prefect_lets_in_nobody_without_the_password(person: Person) -> None:
    api = f"http://127.0.0.1:{person.prefect_port}/api"
    for path in ("/admin/version", "/deployments/", "/csrf-token?client=x", "/flows/count"):
        assert status(api + path) == 401
    foreign = {"Origin": "http://page.example"}
    for headers in ({}, foreign):
        for path in ("/flow_runs/filter", "/deployments/", "/work_pools/filter", "/flows/"):
            assert status(api + path, b"{}", **headers) in (401, 403)
    asked = urllib.request.Request(
        f"{api}/flow_runs/filter",
        method="OPTIONS",
        headers={**foreign, "Access-Control-Request-Method": "POST"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30)
    assert "Access-Control-Allow-Origin" not in refused.value.headers


def test_what_a_person_changed_survives(person: Person, tmp_path: Path) -> None:
    changed = person.python(
        "from prefect.client.schemas.actions import DeploymentUpdate\n"
        "from prefect.client.schemas.schedules import CronSchedule\n"
        "client.update_deployment_schedule(demo.id, demo.schedules[0].id, active=True)\n"
        "weekly = CronSchedule(cron='0 3 * * 1')\n"
        "client.create_deployment_schedules(demo.id, [(weekly, True)])\n"
        "tags = DeploymentUpdate(tags=['mine'], concurrency_limit=2)\n"
        "client.update_deployment(demo.id, tags)\n"
        "vocabulary = client.read_deployment_by_name('vocabulary/vocabulary')\n"
        "client.pause_deployment(vocabulary.id)\n"
        "promote = client.read_deployment_by_name('promote/promote')\n"
        "client.delete_deployment(promote.id)\n"
        "print(json.dumps(str(demo.id)))\n"
    )
    look = (
        "vocabulary = client.read_deployment_by_name('vocabulary/vocabulary')\n"
        "promote = client.read_deployment_by_name('promote/promote')\n"
        "print(json.dumps({'id': str(demo.id), 'tags': demo.tags, 'paused': vocabulary.paused,\n"
        "    'limit': demo.global_concurrency_limit.limit, 'steps': demo.pull_steps,\n"
        "    'crons': sorted([s.schedule.cron, s.active] for s in demo.schedules)}))\n"
    )
    person.down()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    person.up(elsewhere)
    assert person.python(look) == {
        "id": changed,
        "tags": ["mine"],
        "paused": True,
        "limit": 2,
        "steps": [
            {"prefect.deployments.steps.set_working_directory": {"directory": str(elsewhere)}}
        ],
        "crons": [["0 2 * * *", True], ["0 3 * * 1", True]],
    }


def test_down_ends_a_run_in_progress_and_both_pages_say_so(
    person: Person, endless: dict[str, Any]
) -> None:
    train_endlessly(person, endless)
    mark = person.record().mark
    person.down()
    assert marked_processes(mark) == []
    person.up()
    told = person.python(STATES)
    assert [name for name, _ in told["flow runs"]] == ["Crashed"]
    assert told["flow runs"][0][1]
    assert told["training"] == ["KILLED"]
    train_endlessly(person, endless)  # its place is free again


def test_prefects_cancel_saves_where_the_training_run_stands(
    person: Person, endless: dict[str, Any]
) -> None:
    # No checkpoint is due before the end: what the cancel leaves is its own.
    endless["pretraining"]["checkpoint_every_steps"] = 1_000_000
    person.trigger("pretrain/pretrain", {k: v for k, v in endless.items() if k != "finetuning"})
    steps = (
        "from mlflow import MlflowClient\n"
        "mlflow = MlflowClient()\n"
        "found = [e.experiment_id for e in mlflow.search_experiments()]\n"
        "runs = mlflow.search_runs(found)\n"
        "print(json.dumps([r.info.run_id for r in runs if 'train/loss' in r.data.metrics]))\n"
    )
    wait_until(lambda: person.python(steps) != [])
    prefect = [sys.executable, "-m", "prefect", "flow-run"]
    (flow_run,) = person.python(
        "print(json.dumps([str(r.id) for r in client.read_flow_runs() if r.deployment_id]))\n"
    )
    person.shell(shlex.join([*prefect, "cancel", flow_run]))
    wait_until(lambda: [name for name, _ in person.python(STATES)["flow runs"]] == ["Cancelled"])
    (left,) = (person.home / "store" / "encoder").glob(".work-*/*/checkpoint_*/checksums.json")
    saved = json.loads(left.read_text())
    assert saved["step"] > 0
    assert "RUNNING" not in person.python(STATES)["training"]


def test_a_killed_worker_leaves_nothing_behind_and_is_started_alone(
    person: Person, endless: dict[str, Any]
) -> None:
    train_endlessly(person, endless)
    before = person.record().pids
    orphans = len(marked_processes(person.record().mark, WORKER)) - 1
    assert orphans > 5  # the flow run, Ray and its workers
    person.kill(WORKER)
    said = person.up()
    assert "Starting the Prefect worker" in said
    assert all(map(person.record().is_running, NAMES))
    after = person.record().pids
    assert [name for name in NAMES if after[name] != before[name]] == [WORKER]
    told = person.python(STATES)
    assert [name for name, _ in told["flow runs"]] == ["Crashed"]
    assert told["training"] == ["KILLED"]


def test_a_killed_server_is_started_alone_and_the_run_goes_on(
    person: Person, endless: dict[str, Any]
) -> None:
    train_endlessly(person, endless)
    before = person.record().pids
    for name in (PREFECT_SERVER, MLFLOW_SERVER):
        person.kill(name)
    assert "no longer running: Prefect server, MLflow server" in person.call(
        [*BERTSMITH, "doctor", "--home", str(person.home)], check=False
    )
    person.up()
    assert person.record().pids[WORKER] == before[WORKER]
    assert all(map(person.record().is_running, NAMES))
    told = person.python(STATES)
    assert [name for name, _ in told["flow runs"]] == ["Running"]
    assert told["training"] == ["RUNNING"]


def test_after_all_three_were_killed_up_ends_what_is_left_and_starts_anew(
    person: Person, endless: dict[str, Any]
) -> None:
    train_endlessly(person, endless)
    mark = person.record().mark
    for name in NAMES:
        person.kill(name)
    assert marked_processes(mark) != []
    person.up()
    assert marked_processes(mark) == []
    assert person.record().mark != mark
    told = person.python(STATES)
    assert [name for name, _ in told["flow runs"]] == ["Crashed"]
    assert told["training"] == ["KILLED"]


def test_a_killed_run_without_servers_is_told_apart_from_a_live_one(
    person: Person, endless: dict[str, Any], tmp_path: Path
) -> None:
    """Both record in the home's database; `up` finds the one that was killed."""
    person.down()
    recipe = tmp_path / "endless.yaml"
    recipe.write_text(yaml.safe_dump(endless))
    environment = {k: v for k, v in os.environ.items() if not k.startswith(OWN_VARIABLES)}
    command = [*BERTSMITH, "run", str(recipe), "--home", str(person.home)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**environment, "PYTHONPATH": str(CHECKOUT)}, stdout=log, stderr=log
        )
    wait_until(lambda: list((person.home / "store").glob("examples/*/manifest.json")) != [])
    process.kill()
    process.wait()
    (record,) = (person.home / "runs").glob("*/*")
    assert "no longer runs" in person.up()
    assert not record.exists()
    state = person.python(f"print(json.dumps(client.read_flow_run({record.stem!r}).state.name))\n")
    assert state == "Crashed"
