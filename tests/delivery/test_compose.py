"""The composition of services: its schema, and that what it names is there."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.train.launch import STOP_GRACE_SECONDS
from tests.delivery.composition import COMPOSE, read
from tests.delivery.declared import ENTRYPOINT, INFRA, ROOT, is_command

OF_GPUS = INFRA / "compose.gpu.yaml"


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


def test_who_trains_has_time_to_save_before_it_is_killed(ours: dict[str, Any]) -> None:
    drivers = {n: s for n, s in ours.items() if "BERTSMITH_RAY_HEAD" in s.get("environment", {})}
    assert {"worker", "bertsmith"} <= set(drivers)
    for name, service in drivers.items():
        seconds = int(service.get("stop_grace_period", "10s").removesuffix("s"))
        assert seconds > STOP_GRACE_SECONDS, name
    # What depends on others is stopped before them.
    outlive, waiting = set(), ["worker"]
    while waiting:
        needed = set(ours.get(waiting.pop(), {}).get("depends_on", ())) - outlive
        outlive |= needed
        waiting += needed
    assert {"prefect", "mlflow", "s3", "ray-head", "ray-worker"} <= outlive


def test_mlflow_s_database_is_migrated_by_the_container_that_serves_it(
    ours: dict[str, Any],
) -> None:
    script = ours["mlflow"]["command"][2]
    assert script.index("mlflow db upgrade") < script.index("exec mlflow server")


def test_logs_memory_and_capabilities_of_every_container_are_bounded(
    composition: dict[str, Any],
) -> None:
    for name, service in composition["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert re.fullmatch(r"\dg", service["mem_limit"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_the_worker_s_pool_is_the_one_that_is_made_and_deployed_to(ours: dict[str, Any]) -> None:
    script = ours["prepare-flows"]["command"][2]
    declared = yaml.safe_load((INFRA / "prefect.yaml").read_text())["deployments"]
    assert {each["work_pool"]["name"] for each in declared} == {"bertsmith"}
    assert "work-pool create bertsmith --type process" in script
    assert ours["worker"]["command"][3:5] == ["--pool", "bertsmith"]
    (file,) = re.findall(r"--prefect-file (\S+)", script)
    packed = (ROOT / "pyproject.toml").read_text()
    assert f'"share/bertsmith" = ["infra/automations.yaml", "infra/{Path(file).name}"]' in packed


def test_commands_of_the_runbooks_are_there(ours: dict[str, Any]) -> None:
    text = "".join((ROOT / "docs" / name).read_text() for name in ("deploying.md", "operations.md"))
    typed = re.findall(r"docker compose run --rm ([a-z]+) ([^`\n]+)", text)
    assert ("bertsmith", "doctor") in typed
    for name, words in typed:
        assert is_command([*ours[name]["entrypoint"][1:], *words.split()]), words


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


def test_automations_are_as_prefect_takes_them_and_change_no_run() -> None:
    """While Prefect's server is away healthy runs look silent: a person decides."""
    from prefect.events.schemas.automations import AutomationCore

    declared = yaml.safe_load((INFRA / "automations.yaml").read_text())["automations"]
    assert len(declared) == 4
    for each in declared:
        automation = AutomationCore.model_validate(each)
        assert [action.type for action in automation.actions] == ["send-notification"]
