"""The home's credentials: made once, for one person, and brought along to its servers only."""

import os
import stat
from pathlib import Path

import pytest

from flows import environment
from flows.services.credentials import CREDENTIALS_NAME, make_credentials, read_credentials
from flows.services.processes.identity import ProcessIdentity
from flows.services.record import (
    MLFLOW_SERVER,
    PREFECT_SERVER,
    ServiceProcess,
    Services,
    write_record,
)
from pipelines.core.errors import UserError

PREFECT, MLFLOW = "http://127.0.0.1:4999", "http://127.0.0.1:5999"


@pytest.fixture
def running_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home with credentials whose record names this very process as both servers."""
    for name in (
        "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    home = tmp_path / "a home"
    make_credentials(home)
    this = ProcessIdentity.of(os.getpid())
    services = Services(PREFECT, MLFLOW, "bertsmith", "mark")
    for name in (PREFECT_SERVER, MLFLOW_SERVER):
        services = services.with_process(ServiceProcess(name, this, "log"))
    write_record(home, services)
    return home


def test_they_are_made_once_and_only_their_owner_can_read_them(tmp_path: Path) -> None:
    made = make_credentials(tmp_path / "home")
    assert make_credentials(tmp_path / "home") == made
    assert read_credentials(tmp_path / "home") == made
    assert len(made.password) >= 32
    assert made.password not in repr(made)
    (file,) = (tmp_path / "home").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert make_credentials(tmp_path / "another home") != made


def test_credentials_that_others_can_read_are_refused(tmp_path: Path) -> None:
    make_credentials(tmp_path)
    (tmp_path / CREDENTIALS_NAME).chmod(0o644)
    with pytest.raises(UserError, match="readable by its owner alone"):
        read_credentials(tmp_path)


def test_commands_of_the_home_bring_them_along(running_home: Path) -> None:
    environment.set_defaults(running_home)
    credentials = make_credentials(running_home)
    assert os.environ["PREFECT_API_AUTH_STRING"] == credentials.text
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == credentials.password


def test_servers_of_someone_else_never_see_them(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    environment.set_defaults(running_home)
    for name in ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        assert name not in os.environ
