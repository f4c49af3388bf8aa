"""`bertsmith up`, `down` and `doctor`: they start and stop exactly their own processes."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows.cli.app import MISTAKE, run
from flows.local import up_and_down
from flows.local.doctor import check_store, check_tracker
from flows.local.servers import (
    FLOWS,
    PREFECT_SERVER,
    HomeServers,
    Service,
    read_record,
    running_servers,
    write_record,
)
from pipelines.errors import UserError
from pipelines.settings import RuntimeSettings
from tests.waiting import wait_for

pytestmark = pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")  # it outlives `up`

NO_HOME = Path("/proc/bertsmith")  # not even root can make it
# A service that started another process in a group of its own, as a flow run starts Ray.
PARENT = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', "
    "'import time; time.sleep(600)'], process_group=0); print('ready', flush=True); time.sleep(600)"
)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service with one child."""
    log = tmp_path / "log"
    started = up_and_down.start_service(["timeit", "-n1", "-r1", PARENT], os.environ, log, tmp_path)
    wait_for(lambda: "ready" in log.read_text())
    yield started
    for process in started.processes():
        process.kill()


def recorded(home: Path, name: str, service: Service) -> HomeServers:
    home.mkdir(exist_ok=True)
    servers = HomeServers("http://127.0.0.1:1", "http://127.0.0.1:2", {name: service})
    write_record(home, servers)
    return servers


def test_up_names_the_port_that_is_taken(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert run(["up", "--prefect-port", str(port)]) == MISTAKE
    assert f"port {port} is in use" in capsys.readouterr().err
    assert read_record(own_home) is None


def test_down_stops_what_was_recorded_with_all_that_it_started(
    own_home: Path, service: Service
) -> None:
    servers = recorded(own_home, FLOWS, service)
    (child,) = psutil.Process(service.pid).children()
    assert servers.is_running(FLOWS)
    assert up_and_down.stop_services(own_home) == [FLOWS]
    assert service.processes() == []
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert read_record(own_home) is None
    assert up_and_down.stop_services(own_home) == []


def test_down_finds_what_a_killed_service_left(own_home: Path, service: Service) -> None:
    recorded(own_home, FLOWS, service)
    (orphan,) = psutil.Process(service.pid).children()
    os.kill(service.pid, signal.SIGKILL)
    os.waitpid(service.pid, 0)
    assert not service.is_running()
    assert [process.pid for process in service.processes()] == [orphan.pid]
    assert up_and_down.stop_services(own_home) == [FLOWS]
    assert service.processes() == []


def test_a_process_with_the_recorded_number_that_started_later_is_left_alone(
    own_home: Path, service: Service
) -> None:
    stranger = Service(service.pid, service.started - 100)
    servers = recorded(own_home, PREFECT_SERVER, stranger)
    assert not servers.is_running(PREFECT_SERVER)
    assert running_servers(own_home) is None
    assert up_and_down.stop_services(own_home) == []
    assert service.is_running()


def test_a_service_of_a_command_in_the_background_can_be_interrupted(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal, sys; from flows.local.up_and_down import start_service; "
        "signal.signal(signal.SIGINT, signal.SIG_IGN); log = pathlib.Path(sys.argv[1]); "
        "ask = 'import signal; print(signal.getsignal(signal.SIGINT) != signal.SIG_IGN)'; "
        "service = start_service(['timeit', '-n1', '-r1', ask], os.environ, log, log.parent); "
        "os.waitpid(service.pid, 0)"
    )
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", code, str(log)], check=True, timeout=240)
    assert log.read_text().startswith("True")


def test_a_record_of_another_version_gets_a_sentence(own_home: Path) -> None:
    own_home.mkdir()
    for text in ('{"prefect_url": "x", "mark": "y", "pids": {"worker": 1}}', "half a rec"):
        (own_home / "services.json").write_text(text)
        with pytest.raises(UserError, match=r"was not written by `bertsmith up` of this version"):
            read_record(own_home)


def test_up_needs_two_ports(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["up", "--prefect-port", "5000"]) == MISTAKE
    assert "both servers were given port 5000" in capsys.readouterr().err
    assert not own_home.exists()


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc, where none may write")


@on_linux
@pytest.mark.parametrize("command", ["up", "models"])
def test_a_home_that_cannot_be_made_gets_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--home", str(NO_HOME)]) == MISTAKE
    assert "cannot be made" in capsys.readouterr().err


def test_doctor_names_a_tracker_that_is_away_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"http://127.0.0.1:9 does not answer .*; start it"):
        check_tracker(RuntimeSettings())


def test_doctor_shows_no_secret_of_the_store() -> None:
    runtime = RuntimeSettings(store="memory://ann:hidden-word@bucket/x?token=hidden-word")
    with pytest.raises(UserError, match=r"memory://bucket/x\?token=\*\*\* has one of") as raised:
        check_store(runtime)
    assert "hidden-word" not in str(raised.value)
