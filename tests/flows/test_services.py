"""`bertsmith up` and `bertsmith down`: they start and stop exactly their own processes."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from flows.cli.app import MISTAKE, run
from flows.services import lifecycle, processes
from flows.services.ports import free_port, is_free
from flows.services.record import Services, read_record, write_record

FLOWS = {"corpus", "vocabulary", "examples", "pretrain", "finetune", "evaluate", "promote"}


def sleeper(log: Path, seconds: int = 60) -> processes.ServiceProcess:
    """A process with a child, each in a session of its own, as a worker and its flow run are."""
    child = f"import time; time.sleep({seconds})"
    code = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-c', '{child}'], start_new_session=True); "
        f"print('ready', flush=True); time.sleep({seconds})"
    )
    service = processes.start("sleeper", [sys.executable, "-c", code], os.environ, log)
    deadline = time.monotonic() + 30
    while "ready" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    return service


def test_a_port_that_someone_listens_on_is_not_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert not is_free(listener.getsockname()[1])
    assert is_free(free_port())


def test_up_names_the_port_that_is_taken(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert run(["up", "--prefect-port", str(port)]) == MISTAKE
    assert f"port {port} must be free" in capsys.readouterr().err
    assert read_record(own_home) is None


def test_stopping_ends_a_process_and_its_descendants(tmp_path: Path) -> None:
    service = sleeper(tmp_path / "log")
    (child,) = psutil.Process(service.pid).children()
    assert processes.stop([service]) == [service]
    assert not service.is_running()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_stopping_leaves_a_stranger_with_the_same_process_id_alone(tmp_path: Path) -> None:
    service = sleeper(tmp_path / "log")
    stranger = processes.ServiceProcess("stranger", service.pid, service.started - 100, "log")
    assert processes.stop([stranger]) == []
    assert service.is_running()
    processes.stop([service])


def test_down_stops_what_was_written_down_and_forgets_it(own_home: Path, tmp_path: Path) -> None:
    service = sleeper(tmp_path / "log")
    own_home.mkdir()
    write_record(own_home, Services("http://127.0.0.1:1", "http://127.0.0.1:2", "pool", (service,)))
    assert lifecycle.stop_services(own_home) == [service]
    assert read_record(own_home) is None
    assert lifecycle.stop_services(own_home) == []


def test_every_flow_is_deployed_and_the_nightly_schedule_is_paused() -> None:
    declared = yaml.safe_load(lifecycle.deployments_file().read_text())["deployments"]
    by_name = {deployment["name"]: deployment for deployment in declared}
    assert set(by_name) == FLOWS | {"demo"}
    demo = by_name["demo"]
    assert demo["concurrency_limit"]["limit"] == 1
    assert [schedule["active"] for schedule in demo["schedules"]] == [False]


@pytest.mark.slow
def test_a_deployment_completes_between_up_and_down(small_recipe: Path, tmp_path: Path) -> None:
    """Both servers, the worker, a deployment triggered from a shell, and nothing left behind."""
    home = tmp_path / "a home"
    command = [sys.executable, "-c", "from flows.cli import main; main()"]
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PREFECT_API_URL", "PREFECT_HOME", "MLFLOW_TRACKING_URI")
    } | {"BERTSMITH_HOME": str(home)}
    prefect_port, mlflow_port = free_port(), free_port()
    up = [*command, "up", "--prefect-port", str(prefect_port), "--mlflow-port", str(mlflow_port)]

    def call(arguments: list[str], **more: str) -> str:
        completed = subprocess.run(
            arguments, env={**environment, **more}, capture_output=True, text=True, timeout=900
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    try:
        assert f"http://127.0.0.1:{prefect_port}" in call(up)
        started = read_record(home)
        assert started is not None
        assert "running already" in call(up)
        recipe = yaml.safe_load(small_recipe.read_text())
        trigger = [sys.executable, "-m", "prefect", "deployment", "run", "corpus/corpus", "--watch"]
        corpus = {key: recipe[key] for key in ("name", "corpus")}
        said = call(
            [*trigger, "--param", f"recipe={json.dumps(corpus)}"],
            PREFECT_API_URL=f"http://127.0.0.1:{prefect_port}/api",
        )
        assert "Completed" in said
        assert list((home / "store" / "corpus").glob("*/manifest.json"))
    finally:
        said = call([*command, "down"])
    assert said.count("Stopped the") == 3
    assert not any(service.is_running() for service in started.processes)
    assert is_free(prefect_port)
    assert is_free(mlflow_port)
