"""The servers of a home: their addresses and processes, and the name and password they ask for.

`services.json` holds what `bertsmith up` started, `credentials` the password, for its owner alone.
"""

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from pipelines.errors import UserError
from pipelines.settings import make_home
from pipelines.tracking.address import login_variables

PREFECT_SERVER = "Prefect server"
MLFLOW_SERVER = "MLflow server"
FLOWS = "flows"
CREDENTIALS_NAME = "credentials"
_RECORD_NAME = "services.json"
_USER = "bertsmith"
_CLOCK_SECONDS = 1.0  # by which the start of one process may read differently


@dataclass(frozen=True, slots=True)
class Service:
    """A process of `bertsmith up`, which leads a session of its own."""

    pid: int
    started: float  # seconds since the epoch: another process may have the id by now

    def processes(self) -> list[psutil.Process]:
        """The living processes of its session: itself and what it started.

        The system gives nobody else the id of a session that has processes.
        """
        with suppress(psutil.NoSuchProcess):
            if abs(psutil.Process(self.pid).create_time() - self.started) > _CLOCK_SECONDS:
                return []
        return [process for process in psutil.process_iter() if self._holds(process)]

    def is_running(self) -> bool:
        """Whether the very process that was started still runs."""
        return any(process.pid == self.pid for process in self.processes())

    def _holds(self, process: psutil.Process) -> bool:
        try:
            is_ours = os.getsid(process.pid) == self.pid
            return is_ours and process.status() != psutil.STATUS_ZOMBIE
        except (OSError, psutil.Error):  # it ended, or belongs to another user
            return False


@dataclass(frozen=True, slots=True)
class HomeServers:
    """The servers of one home, running or not."""

    prefect_url: str
    mlflow_url: str
    services: dict[str, Service] = field(default_factory=dict)  # by name

    @property
    def prefect_api_url(self) -> str:
        """Where clients of the Prefect server go."""
        return f"{self.prefect_url}/api"

    def is_running(self, name: str) -> bool:
        """Whether the process that was started for the service `name` still runs."""
        return name in self.services and self.services[name].is_running()


_RECORD = TypeAdapter(HomeServers)


def running_servers(home: Path) -> HomeServers | None:
    """The servers of this home while both run, else None."""
    servers = read_record(home)
    if servers is None or not all(map(servers.is_running, (PREFECT_SERVER, MLFLOW_SERVER))):
        return None
    return servers


def read_record(home: Path) -> HomeServers | None:
    """What `bertsmith up` recorded. Raises UserError for a file of another format."""
    path = home / _RECORD_NAME
    if not path.is_file():
        return None
    try:
        return _RECORD.validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(
            f"{path} was not written by `bertsmith up` of this version; end the processes that it "
            "names, then remove it"
        ) from error


def write_record(home: Path, servers: HomeServers) -> None:
    """Record what runs now."""
    draft = home / f"{_RECORD_NAME}.new"
    draft.write_bytes(_RECORD.dump_json(servers, indent=2))
    draft.replace(home / _RECORD_NAME)


def remove_record(home: Path) -> None:
    """Remove the record: nothing runs any more."""
    (home / _RECORD_NAME).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Login:
    """Name and password of a home's Prefect API and MLflow server."""

    user: str
    password: str = field(repr=False)

    @property
    def text(self) -> str:
        """As Prefect asks for it: name, colon, password."""
        return f"{self.user}:{self.password}"

    def for_prefect_clients(self) -> Mapping[str, str]:
        """The variable that lets Prefect's clients in."""
        return {"PREFECT_API_AUTH_STRING": self.text}

    def for_mlflow_clients(self, address: str) -> Mapping[str, str]:
        """The variables that let MLflow's clients into the server at `address`, and no other."""
        return login_variables(address, self.user, self.password)


def read_login(home: Path) -> Login | None:
    """The name and password of this home, if any. Raises UserError if others can read them."""
    path = home / CREDENTIALS_NAME
    if not path.is_file():
        return None
    user, _, password = path.read_text().strip().partition(":")
    if not password or (os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077):
        raise UserError(
            f"{path} holds no name:password, or others can read it; type `bertsmith down`, remove "
            "the file, and `bertsmith up` makes a new one; where files have no modes (a mount of "
            "Windows, CIFS), name another --home"
        )
    return Login(user, password)


def make_login(home: Path) -> Login:
    """The name and password of this home; a random password is made if it has none."""
    make_home(home)
    if (login := read_login(home)) is not None:
        return login
    draft = home / f"{CREDENTIALS_NAME}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(Login(_USER, secrets.token_urlsafe(24)).text + "\n")
    try:
        (home / CREDENTIALS_NAME).hardlink_to(draft)
    except FileExistsError:  # another command made one at the same moment
        pass
    except OSError as error:
        raise UserError(
            f"{home} can hold no links ({error.strerror}), as a mount of Windows or CIFS; name "
            "another --home"
        ) from error
    finally:
        draft.unlink()
    return make_login(home)
