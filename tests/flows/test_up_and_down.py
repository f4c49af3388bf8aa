"""Both servers and the flows as a person meets them: in shells, killed in part, stopped midway."""

import json
import shlex
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flows.local.health import free_port, is_free
from flows.local.servers import FLOWS, MLFLOW_SERVER, PREFECT_SERVER, make_login, read_record
from tests.flows.person import Person, newest_flow_run, newest_training_run, status, train_endlessly
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Someone whose services end as they should, whatever the tests did to them."""
    someone = Person(tmp_path_factory.mktemp("up and down") / "a home", free_port(), free_port())
    try:
        someone.up()
        yield someone
        services = someone.record().services
    finally:
        someone.down()
    assert [each.processes() for each in services.values()] == [[], [], []]
    assert is_free(someone.prefect_port)
    assert is_free(someone.mlflow_port)
    assert read_record(someone.home) is None


@pytest.fixture
def person(home: Person) -> Person:
    """The same, with all services running."""
    servers = read_record(home.home)
    if servers is None or not all(map(servers.is_running, servers.services)):
        home.up()
    return home


@pytest.fixture
def small(small_recipe: Path) -> dict[str, Any]:
    """The small recipe, without its training run from random weights."""
    recipe = yaml.safe_load(small_recipe.read_text())
    return {**recipe, "finetuning": {"num_epochs": 1}}


@pytest.fixture
def endless(small: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """A recipe whose pretraining outlasts its test, without a checkpoint of its own."""
    small["pretraining"] |= {
        "num_steps": 1_000_000, "evaluate_every_steps": 100_000,
        "checkpoint_every_steps": 1_000_000, "seed": zlib.crc32(request.node.name.encode()) // 2,
    }  # fmt: skip
    return small


def steps_saved(person: Person) -> list[int]:
    """The steps of all checkpoints of unfinished training runs."""
    files = (person.home / "store" / "encoder").glob(".work-*/*/checkpoint_*/checksums.json")
    return [json.loads(file.read_text())["step"] for file in files]


def test_a_run_of_the_whole_chain_completes_from_a_new_shell(
    person: Person, small: dict[str, Any]
) -> None:
    assert "running already" in person.up()
    assert "Completed" in person.trigger("end-to-end/demo", small, "--watch")
    assert list((person.home / "store" / "encoder").glob("*/manifest.json"))

    password = make_login(person.home).password
    for log in (person.home / "logs").iterdir():
        assert password not in log.read_text()
    for service in person.record().services.values():
        for process in service.processes():
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
    assert status(f"http://127.0.0.1:{person.mlflow_port}/") == 401


def test_down_ends_a_run_in_progress_which_saves_and_both_pages_say_so(
    person: Person, endless: dict[str, Any]
) -> None:
    before = steps_saved(person)
    train_endlessly(person, endless)
    person.down()
    steps = steps_saved(person)
    assert len(steps) == len(before) + 1 and min(steps) > 0
    person.up()
    assert newest_flow_run(person.home)[1] == "Cancelled"
    assert newest_training_run(person.home) == "KILLED"


def test_prefects_cancel_saves_where_the_training_run_stands(
    person: Person, endless: dict[str, Any]
) -> None:
    before = steps_saved(person)
    train_endlessly(person, endless)
    prefect = [sys.executable, "-m", "prefect", "flow-run"]
    person.shell(shlex.join([*prefect, "cancel", newest_flow_run(person.home)[0]]))
    wait_for(lambda: newest_flow_run(person.home)[1] == "Cancelled")
    steps = steps_saved(person)
    assert len(steps) == len(before) + 1 and min(steps) > 0
    assert newest_training_run(person.home) != "RUNNING"


def test_up_ends_what_killed_services_left_and_starts_them_again(
    person: Person, endless: dict[str, Any]
) -> None:
    train_endlessly(person, endless)
    before = person.record()
    orphans = [process.pid for process in before.services[FLOWS].processes()]
    assert len(orphans) > 5  # the flow run, Ray and its workers
    for name in (FLOWS, MLFLOW_SERVER, PREFECT_SERVER):
        person.kill(name)
    person.up()
    assert not [pid for pid in orphans if psutil.pid_exists(pid)]
    after = person.record()
    assert not set(after.services.values()) & set(before.services.values())
    assert all(map(after.is_running, after.services))
    # An orphan was asked to stop first, and told Prefect of its end where that still answered.
    assert newest_flow_run(person.home)[1] in ("Cancelled", "Crashed")


# The last: the schedules that it leaves may start runs.
def test_the_schedule_that_a_person_switched_on_survives(person: Person) -> None:
    look = "print(json.dumps(sorted([s.schedule.cron, s.active] for s in demo.schedules)))\n"
    assert person.python(look) == [["0 2 * * *", False]]
    person.python(
        "from prefect.client.schemas.schedules import CronSchedule\n"
        "client.update_deployment_schedule(demo.id, demo.schedules[0].id, active=True)\n"
        "weekly = CronSchedule(cron='0 3 * * 1')\n"
        "client.create_deployment_schedules(demo.id, [(weekly, True)])\n"
        "print('{}')\n"
    )
    person.down()
    person.up()
    assert person.python(look) == [["0 2 * * *", True], ["0 3 * * 1", True]]
