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
    AGENT_PORTS,
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
SERVES_FIGURES = ["bertsmith", "metrics"]


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


def networks(service: dict[str, Any]) -> set[str]:
    if service.get("network_mode") == "none":
        return set()
    return set(service.get("networks", ["default"]))


def test_who_asks_another_shares_a_network_with_it(
    composition: dict[str, Any], passwords: Path
) -> None:
    services = composition["services"]
    said = {name: [*map(str, s.get("environment", {}).values())] for name, s in services.items()}
    said["prometheus"] += re.findall(r'"([a-z0-9-]+:\d+)"', PROMETHEUS.read_text())
    said["grafana"].append((INFRA / "monitoring" / "grafana-source.yaml").read_text())
    for name, service in services.items():
        if "server-credentials:/credentials/servers:ro" in service.get("volumes", ()):
            urls = [value for value in written(passwords, "servers").values() if "://" in value]
            said[name] += [re.sub(r"//[^@]+@", "//", url) for url in urls]  # without the password
    pairs = {
        (name, host)
        for name, texts in said.items()
        for text in texts
        for host in re.findall(r"(?:^|//)([a-z][a-z0-9-]*):\d+", text)
        if host in services
    }
    assert {("prefect", "postgres"), ("grafana", "prometheus"), ("prometheus", "s3")} <= pairs
    for name, host in pairs:
        assert networks(services[name]) & networks(services[host]), f"{name} asks {host}"
    declared = set().union(*map(networks, services.values()))
    assert declared == set(composition["networks"])


def test_who_has_no_key_of_the_store_does_not_reach_it(composition: dict[str, Any]) -> None:
    services = composition["services"]
    near = {name for name, s in services.items() if networks(s) & networks(services["s3"])}
    keys = {"client-credentials", "server-credentials", "s3-credentials"}
    holders = {
        name
        for name, s in services.items()
        if keys & {mount.split(":")[0] for mount in s.get("volumes", ())}
    }
    assert near - holders == {"prometheus"}  # for the figures


def test_the_store_opens_s3_alone_and_signs_its_own_calls_with_a_key_of_this_start(
    composition: dict[str, Any], tmp_path: Path
) -> None:
    s3 = composition["services"]["s3"]
    assert {"-s3.port.iceberg=0", "-s3.port.lance=0", "-ip.bind=127.0.0.1"} <= set(s3["command"])
    release = tuple(map(int, s3["image"].rpartition(":")[2].split(".")))
    assert release >= (4, 46)  # the first that asks for a token where there is such a key
    told = tmp_path / "told"
    told.write_text('#!/bin/sh\nprintf "%s\\n" "$WEED_JWT_FILER_SIGNING_KEY" "$@"\n')
    told.chmod(0o755)
    command = [
        each.replace("$$", "$").replace("/entrypoint.sh", str(told)) for each in s3["entrypoint"]
    ]
    assert command != s3["entrypoint"]

    def started(path: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*command, *s3["command"]],
            env={"PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    said = [started(os.environ["PATH"]).stdout.splitlines() for _ in range(2)]
    assert [each[1:] for each in said] == [s3["command"]] * 2
    assert all(len(each[0]) == 44 for each in said)
    assert said[0][0] != said[1][0]
    (tmp_path / "head").write_text("#!/bin/sh\n")  # no random bytes are to be had
    (tmp_path / "head").chmod(0o755)
    without = started(f"{tmp_path}:{os.environ['PATH']}")
    assert without.returncode != 0
    assert without.stdout == ""


def test_figures_of_every_run_lie_where_they_are_served(ours: dict[str, Any]) -> None:
    (home,) = re.findall(r"BERTSMITH_HOME=(\S+)", (INFRA / "Dockerfile").read_text())
    homes = {
        name: [mount.split(":")[0] for mount in s["volumes"] if mount.split(":")[1] == home]
        for name, s in ours.items()
        if "BERTSMITH_RAY_HEAD" in s.get("environment", {}) or s["command"][:2] == SERVES_FIGURES
    }
    assert {"bertsmith", "metrics", "worker-training"} <= homes.keys()
    assert {tuple(volumes) for volumes in homes.values()} == {("worker",)}


def test_commands_of_the_runbooks_are_there(ours: dict[str, Any]) -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("deploying.md", "operations.md"))
    typed = re.findall(
        r"docker compose --file infra/compose\.yaml run --rm ([a-z]+) ([^`\n]+)", text
    )
    assert ("bertsmith", "doctor --platform") in typed
    for name, words in typed:
        assert is_command([*ours[name]["entrypoint"][1:], *words.split()]), words


def test_a_backup_is_written_for_its_owner_alone(tmp_path: Path) -> None:
    runbook = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    dumps = [each for each in re.findall(r"```\n(.*?)```", runbook, re.DOTALL) if "pg_dump" in each]
    assert len(dumps) == 2
    assert all(each.startswith("umask 077") for each in dumps)
    (script,) = re.findall(r'sh -c "(.*tar --create.*)"$', runbook, re.MULTILINE)
    (tmp_path / "from").mkdir()
    script = script.replace("/to/", f"{tmp_path}/").replace("/from", f"{tmp_path}/from")
    # The container has a umask of its own.
    subprocess.run(
        ["sh", "-c", script], env={**os.environ, "volume": "s3"}, umask=0o022, check=True
    )
    assert (tmp_path / "s3.tar.gz").stat().st_mode & 0o777 == 0o600


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


def test_no_node_waits_for_an_agent_to_choose_a_port() -> None:
    services = read(COMPOSE)["services"].values()
    starts = [
        each["command"] for each in services if each.get("command", [])[:2] == ["ray", "start"]
    ]
    assert len(starts) == 2
    for words in [*starts, (INFRA / "entrypoint.sh").read_text().split()]:
        told = dict(re.findall(r"--([a-z-]+-port)=(\d+)", " ".join(words)))
        assert set(told) >= AGENT_PORTS
        assert len({told[name] for name in AGENT_PORTS}) == len(AGENT_PORTS)
