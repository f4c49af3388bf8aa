"""The home's credentials: made once, for one person, and brought along to its servers only."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from flows import environment
from flows.services.credentials import (
    CREDENTIALS_NAME,
    make_credentials,
    read_credentials,
    service_variables,
    shell_variables,
)
from flows.services.record import Services, write_record
from pipelines.core.errors import UserError
from pipelines.core.tracking.sign_in import HOME_PASSWORD
from pipelines.core.tracking.tracker import server_address

PREFECT, MLFLOW = "http://127.0.0.1:4999", "http://127.0.0.1:5999"


@pytest.fixture
def running_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, both_servers: Services) -> Path:
    """A home with credentials whose record names two living processes as its servers."""
    for name in (
        "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "BERTSMITH_MLFLOW_ADDRESS",
        "BERTSMITH_MLFLOW_USERNAME", "BERTSMITH_MLFLOW_PASSWORD", "BERTSMITH_MLFLOW_LENT",
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    home = tmp_path / "a home"
    make_credentials(home)
    write_record(home, both_servers)
    return home


def own_pair() -> tuple[str | None, str | None]:
    """What MLflow would send."""
    return (
        os.environ.get("MLFLOW_TRACKING_USERNAME"),
        os.environ.get("MLFLOW_TRACKING_PASSWORD"),
    )


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
    with pytest.raises(UserError, match="others can read"):
        read_credentials(tmp_path)


def test_commands_of_the_home_bring_them_along(running_home: Path) -> None:
    environment.set_defaults(running_home)
    credentials = make_credentials(running_home)
    assert os.environ["PREFECT_API_AUTH_STRING"] == credentials.text
    assert server_address(MLFLOW) == MLFLOW
    assert own_pair() == (credentials.user, credentials.password)


def test_servers_of_someone_else_never_see_them(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "https://prefect.example/api")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    environment.set_defaults(running_home)
    for name in ("PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        assert name not in os.environ


def test_a_recipes_own_tracker_never_sees_them(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.set_defaults(running_home)
    server_address("https://mlflow.example")
    assert own_pair() == (None, None)
    home = make_credentials(running_home)
    server_address(MLFLOW.replace("127.0.0.1", "localhost") + "/")
    assert own_pair() == (home.user, home.password)
    server_address("https://mlflow.example")
    assert own_pair() == (None, None)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", home.user)  # eval "$(bertsmith env)"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", home.password)
    server_address("https://mlflow.example")
    assert own_pair() == (None, None)


def test_a_persons_own_user_and_password_come_back(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hers")
    environment.set_defaults(running_home)
    assert own_pair() == ("ann", "hers")
    server_address(MLFLOW)
    assert own_pair() == (make_credentials(running_home).user, os.environ[HOME_PASSWORD])
    server_address("https://mlflow.example")
    assert own_pair() == ("ann", "hers")


def test_the_password_of_one_uri_is_not_sent_to_the_next(running_home: Path) -> None:
    assert server_address("https://bob:word@one.example") == "https://one.example"
    assert own_pair() == ("bob", "word")
    tell = (
        "from pipelines.core.tracking.tracker import server_address; import os; "
        "server_address('https://two.example'); print(sorted(os.environ.items()))"
    )
    child = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    assert "'MLFLOW_TRACKING_PASSWORD'" not in child.stdout
    server_address("https://two.example")
    assert own_pair() == (None, None)


def test_the_services_leave_a_persons_own_pair_alone(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hers")
    credentials = make_credentials(running_home)
    services = Services(PREFECT, MLFLOW, "mark")
    assert service_variables(running_home, services, credentials)["MLFLOW_TRACKING_PASSWORD"] == (
        "hers"
    )
    shell = shell_variables(running_home, services, credentials)
    assert shell["MLFLOW_TRACKING_PASSWORD"] == credentials.password
