"""The home's credentials: made once, for one person, and brought along to its servers only."""

import os
import stat
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
import requests
from mlflow.tracking.request_auth.registry import fetch_auth

from flows import environment
from flows.services.credentials import (
    CREDENTIALS_NAME,
    Services,
    make_credentials,
    read_credentials,
    service_variables,
    shell_variables,
    write_record,
)
from pipelines.config.errors import UserError
from pipelines.tracking.tracker import server_address

PREFECT, MLFLOW = "http://127.0.0.1:4999", "http://127.0.0.1:5999"


@pytest.fixture
def running_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, both_servers: Services) -> Path:
    """A home with credentials whose record names two living processes as its servers."""
    for name in (
        "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI",
        "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "BERTSMITH_MLFLOW_LOGIN",
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    home = tmp_path / "a home"
    make_credentials(home)
    write_record(home, both_servers)
    return home


def sent_to(url: str) -> tuple[str, ...]:
    """User and password that MLflow's client sends with a request to `url`."""
    exported = [os.environ.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD")]
    headers = {"Authorization": f"Basic {b64encode(':'.join(exported).encode()).decode()}"}
    server_address(MLFLOW)
    auth = fetch_auth(os.environ["MLFLOW_TRACKING_AUTH"])
    request = requests.Request("GET", url, headers if all(exported) else {}, auth=auth).prepare()
    header = request.headers.get("Authorization", "")
    return tuple(b64decode(header.removeprefix("Basic ")).decode().split(":")) if header else ()


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
    assert sent_to(f"{MLFLOW}/api") == (credentials.user, credentials.password)
    assert sent_to("http://localhost:5999/") == (credentials.user, credentials.password)
    assert sent_to("http://127.0.0.1:6000/") == ()


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
    home = make_credentials(running_home)
    assert sent_to("https://mlflow.example/api") == ()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", home.user)  # eval "$(bertsmith env)"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", home.password)
    assert sent_to("https://mlflow.example/api") == ()
    assert sent_to(MLFLOW) == (home.user, home.password)


def test_a_persons_own_user_and_password_go_to_every_server_but_the_home_s(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hers")
    environment.set_defaults(running_home)
    home = make_credentials(running_home)
    assert sent_to(MLFLOW) == (home.user, home.password)
    assert sent_to("https://mlflow.example") == ("ann", "hers")
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "hers"


def test_the_password_of_one_uri_goes_to_its_server_alone(running_home: Path) -> None:
    assert server_address("https://bob:word@one.example") == "https://one.example"
    assert sent_to("https://one.example/api") == ("bob", "word")
    assert sent_to("https://two.example/api") == sent_to("http://one.example/api") == ()
    tell = "import os; print(sorted(os.environ.items()))"
    child = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    assert "'MLFLOW_TRACKING_PASSWORD'" not in child.stdout
    server_address("https://one.example")
    assert sent_to("https://one.example/api") == ()


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
