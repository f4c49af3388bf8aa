"""`bertsmith up` and `bertsmith down`: they start and stop exactly their own processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from flows.cli.app import MISTAKE, run
from flows.services import deployments, lifecycle, processes
from flows.services.credentials import (
    PREFECT_SERVER,
    WORKER,
    Services,
    read_record,
    write_record,
)
from flows.services.doctor import check_servers
from flows.services.doctor_servers import check_store, check_tracker
from flows.services.health import free_port, is_free
from flows.services.processes import marked_processes
from pipelines.config.errors import UserError

FLOWS = {
    "corpus", "vocabulary", "examples", "pretrain", "dataset", "finetune", "evaluate", "promote",
    "rollback", "batch-prediction",
}  # fmt: skip


MARK = f"a mark of the tests {os.getpid()}"  # other tests may run beside these


NO_HOME = Path("/proc/bertsmith")  # not even root can make it


def sleeper(log: Path, name: str = "sleeper") -> int:
    """The id of a marked process with a child, each in a session of its own: a worker, its run."""
    code = (
        "import subprocess, sys, time; "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); "
        "print('ready', flush=True); time.sleep(600)"
    )
    pid = processes.start(name, [sys.executable, "-c", code], os.environ, MARK, log)
    deadline = time.monotonic() + 240
    while "ready" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    return pid


def test_a_service_of_a_command_in_the_background_can_be_interrupted(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from flows.services.processes import start; "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "asked = 'import signal; print(signal.getsignal(signal.SIGINT) != signal.SIG_IGN)'; "
        f"pid = start('one', [sys.executable, '-c', asked], os.environ, '{MARK}', "
        "__import__('pathlib').Path(sys.argv[1])); os.waitpid(pid, 0)"
    )
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", code, str(log)], check=True, timeout=240)
    assert log.read_text().strip() == "True"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a test does, its sleepers end."""
    yield
    processes.stop(MARK)


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
    assert f"port {port} for the Prefect server is in use" in capsys.readouterr().err
    assert read_record(own_home) is None


def test_stopping_ends_a_process_and_what_it_started(tmp_path: Path) -> None:
    pid = sleeper(tmp_path / "log")
    (child,) = psutil.Process(pid).children()
    processes.stop(MARK)
    assert not processes.is_running(pid, MARK, "sleeper")
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_a_killed_process_started_is_found_by_its_mark(tmp_path: Path) -> None:
    pid = sleeper(tmp_path / "log")
    (orphan,) = psutil.Process(pid).children()
    os.kill(pid, signal.SIGKILL)
    while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not processes.is_running(pid, MARK, "sleeper")  # a zombie: nobody has waited for it
    os.waitpid(pid, 0)
    assert [process.pid for process in marked_processes(MARK)] == [orphan.pid]
    processes.stop(MARK)
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE


def test_stopping_one_service_leaves_the_others_and_strangers_alone(tmp_path: Path) -> None:
    worker, server = sleeper(tmp_path / "a", "worker"), sleeper(tmp_path / "b", "server")
    stranger = processes.start(
        "worker",
        [sys.executable, "-c", "import time; time.sleep(600)"],
        os.environ,
        "another mark",
        tmp_path / "c",
    )
    processes.stop(MARK, "worker")
    assert not processes.is_running(worker, MARK, "worker")
    assert processes.is_running(server, MARK, "server")
    assert processes.is_running(stranger, "another mark", "worker")
    assert not processes.is_running(stranger, MARK, "worker")  # as if it had the id of ours
    processes.stop("another mark")
    assert not processes.is_running(stranger, "another mark", "worker")


def test_down_stops_what_was_written_down_and_forgets_it(own_home: Path, tmp_path: Path) -> None:
    pids = {WORKER: sleeper(tmp_path / "log", WORKER)}
    own_home.mkdir()
    services = Services("http://127.0.0.1:1", "http://127.0.0.1:2", MARK, pids)
    write_record(own_home, services)
    assert lifecycle.stop_services(own_home, print) == [WORKER]
    assert not services.is_running(WORKER)
    assert read_record(own_home) is None
    assert lifecycle.stop_services(own_home, print) == []


def test_a_record_of_another_version_gets_a_sentence(own_home: Path) -> None:
    own_home.mkdir()
    for text in ('{"prefect_url": "x", "processes": [{"name": "a", "pid": 1}]}', "half a rec"):
        (own_home / "services.json").write_text(text)
        with pytest.raises(UserError, match=r"was not written by `bertsmith up` of this version"):
            read_record(own_home)


def test_doctor_names_what_ended_and_the_cure(own_home: Path, tmp_path: Path) -> None:
    own_home.mkdir()
    pids = {name: sleeper(tmp_path / name, name) for name in (PREFECT_SERVER, WORKER)}
    write_record(own_home, Services("http://127.0.0.1:1", "http://127.0.0.1:2", MARK, pids))
    found = check_servers(own_home, 4200, 5000)
    assert found.finding == "started, but no longer running: MLflow server"
    assert found.advice == "start them again: bertsmith up"


def test_env_wants_servers_that_run(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["env"]) == MISTAKE
    captured = capsys.readouterr()
    assert "are not running" in captured.err
    assert captured.out == ""


def test_every_flow_is_deployed_and_the_nightly_schedule_is_paused() -> None:
    declared = yaml.safe_load(deployments.declared_file("prefect.yaml").read_text())["deployments"]
    by_name = {deployment["name"]: deployment for deployment in declared}
    assert set(by_name) == FLOWS | {"demo"}
    demo = by_name["demo"]
    assert "concurrency_limit" not in demo  # a run of it may wait for an approval
    assert [schedule["active"] for schedule in demo["schedules"]] == [False]


def test_up_wants_two_ports(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--prefect-port", "5000"]) == MISTAKE
    assert "both servers were given port 5000" in capsys.readouterr().err
    assert not own_home.exists()


@pytest.mark.parametrize("name", ["flows", "pipelines", "bert_core"])
def test_up_is_refused_in_a_folder_with_a_package_of_that_name(
    name: str, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    # Two equal ports: whatever is checked, nothing starts.
    assert run(["up", "--prefect-port", "5000"]) == MISTAKE
    said = capsys.readouterr().err
    assert f"bertsmith: {tmp_path} has a package {name} of its own" in said
    assert len(said.splitlines()) == 1
    assert not own_home.exists()


@pytest.mark.parametrize("port", ["99999", "-1"])
def test_doctor_refuses_what_is_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--prefect-port", port]) == MISTAKE
    assert "Invalid value for '--prefect-port'" in capsys.readouterr().err


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where none may write")


@on_linux
@pytest.mark.parametrize("command", ["up", "models"])
def test_a_home_that_cannot_be_made_gets_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--home", str(NO_HOME)]) == MISTAKE
    assert "cannot be made" in capsys.readouterr().err


@on_linux
def test_doctor_goes_on_where_the_home_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BERTSMITH_HOME", str(NO_HOME))
    check = check_tracker()
    assert check.state == "fail"
    assert "cannot be made" in check.finding


def test_doctor_shows_no_secret_of_the_store() -> None:
    check = check_store("memory://ann:hidden-word@bucket/store?token=hidden-word")
    assert "memory://bucket/store" in check.finding
    assert "hidden-word" not in check.finding
