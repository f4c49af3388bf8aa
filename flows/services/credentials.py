"""The servers of a home and their credentials, as variables of clients and servers.

Access needs the home's file `credentials`, readable by its owner alone.
"""

import json
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flows.services.processes import is_running
from pipelines.config.environment import make_home
from pipelines.config.errors import UserError
from pipelines.tracking.sign_in import home_variables

RECORD_NAME = "services.json"
PREFECT_SERVER = "Prefect server"
MLFLOW_SERVER = "MLflow server"
WORKER = "Prefect worker"
NAMES = (PREFECT_SERVER, MLFLOW_SERVER, WORKER)


@dataclass(frozen=True, slots=True)
class Services:
    """The servers and the worker of one home."""

    prefect_url: str
    mlflow_url: str
    mark: str  # in the environment of every process that descends from them
    pids: dict[str, int] = field(default_factory=dict)  # by name of the service

    @property
    def prefect_api_url(self) -> str:
        """Where clients of the Prefect server go."""
        return f"{self.prefect_url}/api"

    def is_running(self, name: str) -> bool:
        """Whether the process that was started for the service `name` still runs."""
        return name in self.pids and is_running(self.pids[name], self.mark, name)


def read_services(home: Path) -> Services | None:
    """The services of this home while both servers run, else None."""
    services = read_record(home)
    if services is None or not all(map(services.is_running, (PREFECT_SERVER, MLFLOW_SERVER))):
        return None
    return services


def read_record(home: Path) -> Services | None:
    """The recorded services, running or not. Raises UserError for a file of another format."""
    path = home / RECORD_NAME
    if not path.is_file():
        return None
    try:
        return Services(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{path} was not written by `bertsmith up` of this version; end the processes that it "
            "names (`bertsmith down` of the version that started them does), then remove it"
        ) from error


def write_record(home: Path, services: Services) -> None:
    """Record what runs now."""
    from pipelines.artifacts.access import write_to_disk  # no command that reads needs it

    write_to_disk(home / RECORD_NAME, json.dumps(asdict(services), indent=2) + "\n")


def remove_record(home: Path) -> None:
    """Remove the record: nothing runs any more."""
    (home / RECORD_NAME).unlink(missing_ok=True)


CREDENTIALS_NAME = "credentials"
_USER = "bertsmith"
_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and password of a home's Prefect API and MLflow server."""

    user: str
    password: str = field(repr=False)

    @property
    def text(self) -> str:
        """As Prefect's page asks for it: name, colon, password."""
        return f"{self.user}:{self.password}"

    def for_prefect_clients(self) -> Mapping[str, str]:
        """The variable that lets Prefect's clients in."""
        return {"PREFECT_API_AUTH_STRING": self.text}

    def for_prefect_server(self, page_url: str) -> Mapping[str, str]:
        """The variables by which a Prefect server rejects other people and other pages."""
        return {
            "PREFECT_SERVER_API_AUTH_STRING": self.text,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": (
                f"{page_url},{page_url.replace('127.0.0.1', 'localhost')}"
            ),
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        }


def read_credentials(home: Path) -> Credentials | None:
    """The credentials of this home, if any. Raises UserError if others can read them."""
    path = home / CREDENTIALS_NAME
    if not path.is_file():
        return None
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UserError(
            f"others can read {path} (mode {stat.S_IMODE(path.stat().st_mode):o}); type `bertsmith "
            "down`, remove the file, and `bertsmith up` makes a new one"
        )
    user, _, password = path.read_text().strip().partition(":")
    if not password:
        raise UserError(
            f"{path} does not hold name:password; type `bertsmith down`, remove the file, and "
            "`bertsmith up` makes a new one"
        )
    return Credentials(user, password)


def make_credentials(home: Path) -> Credentials:
    """The credentials of this home; random ones are created if it has none."""
    found = read_credentials(home)
    if found is not None:
        return found
    make_home(home)
    draft = home / f"{CREDENTIALS_NAME}.{secrets.token_hex(8)}"
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(Credentials(_USER, secrets.token_urlsafe(24)).text + "\n")
        file.flush()
        os.fsync(file.fileno())  # a name without its content would stop every `up`
    with suppress(FileExistsError):  # another command created them at the same moment
        (home / CREDENTIALS_NAME).hardlink_to(draft)
    draft.unlink()
    made = read_credentials(home)
    assert made is not None
    return made


def own_variables(home: Path, services: Services, credentials: Credentials) -> Mapping[str, str]:
    """What our programs need; the tracker sends MLflow's password to this server alone."""
    return {
        "BERTSMITH_HOME": str(home),
        "PREFECT_API_URL": services.prefect_api_url,
        **credentials.for_prefect_clients(),
        "MLFLOW_TRACKING_URI": services.mlflow_url,
        **home_variables(services.mlflow_url, credentials.user, credentials.password),
    }


def shell_variables(home: Path, services: Services, credentials: Credentials) -> Mapping[str, str]:
    """What any program needs to use both servers."""
    return {
        **own_variables(home, services, credentials),
        "MLFLOW_TRACKING_USERNAME": credentials.user,
        "MLFLOW_TRACKING_PASSWORD": credentials.password,
    }


def service_variables(
    home: Path, services: Services, credentials: Credentials
) -> Mapping[str, str]:
    """The whole environment of a service."""
    return {
        **os.environ,
        **own_variables(home, services, credentials),
        **credentials.for_prefect_server(services.prefect_url),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that nothing here uses
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_UI_API_URL": services.prefect_api_url,  # else the page asks port 4200
        # Kept in memory, the holders of a deployment's slots would be lost by a restart.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": _LEASES,
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
