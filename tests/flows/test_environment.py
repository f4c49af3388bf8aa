"""Where a command finds its Prefect API and its home."""

import os
from pathlib import Path

import psutil
import pytest

from flows import environment
from flows.services.record import ServiceProcess, Services, read_services, write_record


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No API in the environment, no Prefect profile; a person's home folder that is empty."""
    for name in ("PREFECT_API_URL", "PREFECT_HOME", "PREFECT_PROFILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def services_of(process: psutil.Process, started: float | None = None) -> Services:
    return Services(
        prefect_url="http://127.0.0.1:4999",
        mlflow_url="http://127.0.0.1:5999",
        work_pool="bertsmith",
        processes=(
            ServiceProcess("Prefect server", process.pid, started or process.create_time(), "log"),
        ),
    )


def test_the_home_is_what_was_given_else_the_variable_else_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment.home_folder("elsewhere") == tmp_path / "elsewhere"
    assert environment.home_folder() == Path(os.environ["BERTSMITH_HOME"])
    monkeypatch.delenv("BERTSMITH_HOME")
    assert environment.home_folder() == tmp_path / ".bertsmith"


def test_prefect_writes_into_the_home_where_nothing_is_configured(
    nothing_configured: Path,
) -> None:
    environment.set_defaults(nothing_configured / "home")
    assert os.environ["PREFECT_HOME"] == str(nothing_configured / "home" / "prefect")
    assert "PREFECT_API_URL" not in os.environ


def test_a_persons_prefect_profile_is_left_alone(nothing_configured: Path) -> None:
    folder = nothing_configured / ".prefect"
    folder.mkdir()
    (folder / "profiles.toml").write_text(
        'active = "work"\n[profiles.work]\nPREFECT_API_URL = "http://prefect.example/api"\n'
    )
    environment.set_defaults(nothing_configured / "home")
    assert "PREFECT_HOME" not in os.environ


def test_commands_use_the_services_that_run_for_their_home(nothing_configured: Path) -> None:
    home = nothing_configured / "home"
    home.mkdir()
    write_record(home, services_of(psutil.Process()))
    environment.set_defaults(home)
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:4999/api"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:5999"


def test_a_process_id_that_belongs_to_someone_else_by_now_does_not_count(tmp_path: Path) -> None:
    write_record(tmp_path, services_of(psutil.Process(), started=1.0))
    assert read_services(tmp_path) is None
