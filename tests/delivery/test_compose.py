"""The composition of services: its schema, and that what it names is there."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.services.first_start.credentials import make_credentials
from flows.services.platform.declaration import read_platform
from flows.services.processes.health import URL_VARIABLE
from pipelines.core.errors import UserError
from pipelines.core.tracking import migration
from pipelines.training.stopping import PATIENCE_SECONDS
from tests.delivery.declared import (
    ENTRYPOINT,
    INFRA,
    PROMETHEUS,
    ROOT,
    as_prefect_takes_them,
    foreign_names,
    is_command,
)

COMPOSE = INFRA / "compose.yaml"
OF_GPUS = INFRA / "compose.gpu.yaml"
CREDENTIALS = "/credentials"


def read(path: Path) -> dict[str, Any]:
    """As the composition's reader sees it: merged, with every variable left at its default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text(encoding="utf-8"))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


@pytest.fixture(scope="module")
def composition() -> dict[str, Any]:
    return read(COMPOSE)


@pytest.fixture(scope="module")
def ours(composition: dict[str, Any]) -> dict[str, Any]:
    """The services that run our image."""
    return {n: s for n, s in composition["services"].items() if s["image"].startswith("bertsmith")}


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first start makes."""
    folder = tmp_path_factory.mktemp("credentials")
    assert make_credentials(folder)
    return folder


def written(passwords: Path, part: str) -> dict[str, str]:
    lines = (passwords / part / "environment").read_text().splitlines()
    return dict(line.partition("=")[::2] for line in lines)


@pytest.mark.parametrize("file", [COMPOSE, OF_GPUS], ids=lambda path: path.name)
def test_it_keeps_to_the_specification(file: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="the package holds Compose's schema")
    command = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_role_is_a_command_of_the_image(ours: dict[str, Any]) -> None:
    assert {"prefect", "mlflow", "ray-head", "ray-worker", "bertsmith"} <= set(ours)
    for name, service in ours.items():
        command = service["command"]
        if "entrypoint" in service:
            assert service["entrypoint"][0] == ENTRYPOINT
            command = [*service["entrypoint"][1:], *command]
        assert is_command(command), f"{name}: {command}"


def test_with_gpus_every_role_runs_the_same_image_and_one_node_of_ray_has_them(
    ours: dict[str, Any],
) -> None:
    changed = read(OF_GPUS)["services"]
    assert changed.keys() == ours.keys()
    images = {(each["image"], each["build"]["args"]["DEVICE"]) for each in changed.values()}
    ((image, device),) = images
    assert (image.rpartition("-")[2], device) == ("cuda", "cuda")
    (name,) = (name for name, each in changed.items() if "deploy" in each)
    (gpus,) = changed[name]["deploy"]["resources"]["reservations"]["devices"]
    assert gpus == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert (name, changed[name]["deploy"]["replicas"]) == ("ray-worker", 1)


def test_every_work_pool_has_a_worker(ours: dict[str, Any]) -> None:
    commands = [s["command"] for name, s in ours.items() if name.startswith("worker-")]
    served = [command[command.index("--pool") + 1] for command in commands]
    assert served == [pool.name for pool in read_platform().work_pools]
    for command in commands:  # a pool is the preparation's to make
        assert "--no-create-pool-if-not-found" in command
        assert command[command.index("--type") + 1] == "process"


def test_who_trains_has_time_to_save_before_it_is_killed(ours: dict[str, Any]) -> None:
    drivers = {n: s for n, s in ours.items() if "BERTSMITH_RAY_HEAD" in s.get("environment", {})}
    assert {"worker-training", "bertsmith"} <= set(drivers)
    for name, service in drivers.items():
        seconds = int(service.get("stop_grace_period", "10s").removesuffix("s"))
        assert seconds > PATIENCE_SECONDS, name
    # What depends on others is stopped before them.
    outlive, waiting = set(), ["worker-training"]
    while waiting:
        needed = set(ours.get(waiting.pop(), {}).get("depends_on", ())) - outlive
        outlive |= needed
        waiting += needed
    assert {"prefect", "mlflow", "s3", "ray-head", "ray-worker"} <= outlive


def test_mlflow_starts_on_a_database_that_was_migrated(ours: dict[str, Any]) -> None:
    first, server = ours["migrate-mlflow"], ours["mlflow"]
    assert server["depends_on"]["migrate-mlflow"] == {"condition": "service_completed_successfully"}
    assert first["command"][2] == migration.__name__
    assert first["environment"].items() <= server["environment"].items()


def test_every_variable_means_something(ours: dict[str, Any], passwords: Path) -> None:
    secret = {**written(passwords, "clients"), **written(passwords, "servers")}
    for name, service in ours.items():
        variables = {**service.get("environment", {}), **secret}
        assert not foreign_names(variables), name
        as_prefect_takes_them(variables)


def test_services_and_ports_that_variables_name_are_there(
    composition: dict[str, Any], ours: dict[str, Any]
) -> None:
    services = composition["services"]
    for name, service in ours.items():
        for value in service.get("environment", {}).values():
            for host, port in re.findall(r"(?:^|//)([a-z-]+):(\d+)", str(value)):
                assert listens(services[host], int(port)), f"{name} asks {host}:{port}"
        url = service.get("environment", {}).get(URL_VARIABLE)
        if url:
            assert listens(service, int(url.split(":")[2].partition("/")[0])), url
        else:
            assert service["healthcheck"] == {"disable": True}, f"{name} says nothing of its health"


def listens(service: dict[str, Any], port: int) -> bool:
    """Whether its command or environment names the port, or it is known to the program."""
    own = service.get("environment", {})
    said = [*map(str, service.get("command", [])), *map(str, own.values())]
    known = {52365} if "ray" in said else set()  # where every node's agent answers
    known |= {9090} if service["image"].startswith("prom/") else set()
    return port in known or any(str(port) in re.findall(r"\d+", text) for text in said)


def test_pages_are_on_the_loopback_and_servers_have_no_door(composition: dict[str, Any]) -> None:
    opened = {}
    for name, service in composition["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} opens {port}"
            opened[name] = int(port.rpartition(":")[2])
    assert opened == {"prefect": 4200, "mlflow": 5000, "ray-head": 8265, "grafana": 3000}


def test_files_and_volumes_are_there(composition: dict[str, Any]) -> None:
    mounted = [
        mount
        for service in composition["services"].values()
        for mount in service.get("volumes", ())
    ]
    for mount in mounted:
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (INFRA / source).exists(), mount
        else:
            assert source in composition["volumes"], mount
    assert {mount.split(":")[0] for mount in mounted} >= set(composition["volumes"])


def test_each_reader_of_a_password_finds_it(composition: dict[str, Any], passwords: Path) -> None:
    made = {path.relative_to(passwords) for path in passwords.rglob("*") if path.is_file()}
    parts = {str(path.parts[0]) for path in made}
    first = composition["services"]["credentials"]
    where = dict(mount.split(":")[:2] for mount in first["volumes"])
    assert {Path(target).name for target in where.values()} == parts
    texts = [COMPOSE.read_text(), PROMETHEUS.read_text()]
    for service in composition["services"].values():
        for mount in service.get("volumes", ()):
            source, target = mount.split(":")[:2]
            if service is first or source not in where:
                continue
            part = Path(where[source]).name
            asked = {name for text in texts for name in re.findall(rf"{target}/([\w./]+)", text)}
            files = {str(path.relative_to(part)) for path in made if path.parts[0] == part}
            assert asked & files, f"nobody reads {files} at {target}"


def test_passwords_are_made_once_and_differ(passwords: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in passwords.rglob("*") if path.is_file()}
    assert not make_credentials(passwords)
    assert {path: path.read_bytes() for path in before} == before
    assert make_credentials(tmp_path)
    assert (tmp_path / "postgres" / "password").read_text() != before[
        passwords / "postgres" / "password"
    ].decode()
    identity = json.loads((passwords / "s3" / "identities.json").read_text())["identities"][0]
    clients = written(passwords, "clients")
    assert identity["credentials"][0]["secretKey"] == clients["AWS_SECRET_ACCESS_KEY"]
    assert identity["credentials"][0]["accessKey"] == clients["AWS_ACCESS_KEY_ID"]
    server = written(passwords, "servers")
    assert (passwords / "postgres" / "password").read_text() in server["MLFLOW_BACKEND_STORE_URI"]
    assert not {"POSTGRES", "DATABASE"} & {part for name in clients for part in name.split("_")}


def test_a_volume_of_passwords_that_is_gone_is_told(tmp_path: Path) -> None:
    make_credentials(tmp_path)
    (tmp_path / "grafana" / "password").unlink()
    with pytest.raises(UserError, match=r"found no grafana/password; put the missing volume back"):
        make_credentials(tmp_path)


def test_a_first_start_that_was_cut_short_begins_again(tmp_path: Path) -> None:
    make_credentials(tmp_path)
    (tmp_path / "servers" / "complete").unlink()
    old = (tmp_path / "postgres" / "password").read_text()
    assert make_credentials(tmp_path)
    assert (tmp_path / "postgres" / "password").read_text() != old


@pytest.mark.parametrize("rotated", ["prometheus/password", "prometheus/ray_token"])
def test_a_password_is_changed_wherever_it_stands(tmp_path: Path, rotated: str) -> None:
    make_credentials(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_text() for path in files}
    runbook = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"--entrypoint sh credentials -euc '([^']+)'", runbook)
    script = script.replace("/credentials", str(tmp_path)).replace("prometheus/password", rotated)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-euc", script], env={"PATH": path}, check=True)
    old, new = before[tmp_path / rotated], (tmp_path / rotated).read_text()
    assert len(new) == len(old)
    assert new != old
    assert {path: path.read_text() for path in files} == {
        path: text.replace(old, new) for path, text in before.items()
    }
    assert sum(old in text for text in before.values()) >= 2
    assert not make_credentials(tmp_path)


def test_the_shell_of_the_image_takes_the_passwords(passwords: Path) -> None:
    wanted = written(passwords, "clients")
    environment = {
        "PATH": os.environ["PATH"],
        "BERTSMITH_CREDENTIALS": str(passwords / "clients" / "environment"),
    }
    done = subprocess.run(
        ["sh", INFRA / "entrypoint.sh", "env"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: found.get(name) for name in wanted} == wanted


def test_modules_of_commands_have_no_other_name() -> None:
    named = re.findall(r"(?:flows|pipelines)(?:\.\w+)+", COMPOSE.read_text())
    assert named
    for name in named:
        assert find_spec(name) is not None, name
