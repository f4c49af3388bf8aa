"""The home's password: made once, for one person, and brought along to its servers only."""

import errno
import os
import stat
from base64 import b64decode
from pathlib import Path

import pytest
import requests

from flows import environment
from flows.local.servers import CREDENTIALS_NAME, HomeServers, make_login, read_login, write_record
from flows.local.up_and_down import _variables
from pipelines.errors import UserError
from pipelines.tracking.address import HomeLogin

PREFECT, MLFLOW = "http://127.0.0.1:4999", "http://127.0.0.1:5999"


@pytest.fixture
def running_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, both_servers: HomeServers
) -> Path:
    """A home with a password whose record names two living processes as its servers."""
    for name in (
        "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD",
        "MLFLOW_TRACKING_AUTH", "BERTSMITH_MLFLOW_LOGIN",
    ):  # fmt: skip
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    home = tmp_path / "a home"
    make_login(home)
    write_record(home, both_servers)
    return home


def sent_to(url: str) -> tuple[str, ...]:
    """User and password that a request to `url` brings."""
    request = requests.Request("GET", url, auth=HomeLogin()).prepare()
    header = request.headers.get("Authorization", "")
    return tuple(b64decode(header.removeprefix("Basic ")).decode().split(":")) if header else ()


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    made = make_login(tmp_path / "home")
    assert make_login(tmp_path / "home") == made
    assert read_login(tmp_path / "home") == made
    assert len(made.password) >= 32
    assert made.password not in repr(made)
    (file,) = (tmp_path / "home").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert make_login(tmp_path / "another home") != made


def test_a_folder_that_holds_no_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    with pytest.raises(UserError, match=r"can hold no links .*; name another --home"):
        make_login(tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_login(tmp_path)
    (tmp_path / CREDENTIALS_NAME).chmod(0o644)
    with pytest.raises(UserError, match="others can read"):
        read_login(tmp_path)


def test_commands_of_the_home_bring_it_to_its_server_alone(running_home: Path) -> None:
    environment.set_defaults(running_home)
    login = make_login(running_home)
    assert os.environ["MLFLOW_TRACKING_URI"] == MLFLOW
    assert os.environ["MLFLOW_TRACKING_AUTH"] == HomeLogin().get_name()
    assert sent_to(f"{MLFLOW}/api") == (login.user, login.password)
    assert sent_to("http://localhost:5999/") == (login.user, login.password)
    for other in ("http://127.0.0.1:6000/", "https://127.0.0.1:5999/", "https://mlflow.example"):
        assert sent_to(other) == ()
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        assert name not in os.environ


def test_a_persons_own_user_and_password_go_to_every_server_but_the_home_s(
    running_home: Path,
) -> None:
    environment.set_defaults(running_home)
    login = make_login(running_home)
    hers = {"Authorization": "Basic YW5uOmhlcnM="}  # as MLflow puts it there
    for url, text in {MLFLOW: login.text, "https://mlflow.example": "ann:hers"}.items():
        header = requests.Request("GET", url, hers, auth=HomeLogin()).prepare().headers
        assert b64decode(header["Authorization"].removeprefix("Basic ")).decode() == text


def test_services_take_no_prefect_settings_of_the_person(
    running_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = "postgresql+asyncpg://prefect.example/prefect"
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", theirs)
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", theirs)
    monkeypatch.setenv("PREFECT_API_KEY", "theirs")
    monkeypatch.setenv("PREFECT_PROFILE", "work")
    variables = _variables(running_home, HomeServers(PREFECT, MLFLOW))
    own = variables.pop("PREFECT_SERVER_DATABASE_CONNECTION_URL")
    assert own == f"sqlite+aiosqlite:///{running_home / 'prefect' / 'prefect.db'}"
    assert variables["PREFECT_API_URL"] == f"{PREFECT}/api"
    assert variables["PYTHONSAFEPATH"] == "1"
    assert not {theirs, "theirs", "work"} & set(variables.values())
