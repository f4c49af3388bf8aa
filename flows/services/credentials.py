"""Who may use the servers of a home: whoever can read one file in it."""

import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.core.errors import UserError
from pipelines.core.home import make_home

CREDENTIALS_NAME = "credentials"
_USER = "bertsmith"


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

    def for_mlflow_clients(self) -> Mapping[str, str]:
        """The variables that let MLflow's clients in."""
        return {
            "MLFLOW_TRACKING_USERNAME": self.user,
            "MLFLOW_TRACKING_PASSWORD": self.password,
        }

    def for_prefect_server(self, page_url: str) -> Mapping[str, str]:
        """The variables that make a Prefect server let in nobody else, and no other page."""
        return {
            "PREFECT_SERVER_API_AUTH_STRING": self.text,
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(_origins(page_url)),
            "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        }


def read_credentials(home: Path) -> Credentials | None:
    """The credentials of this home, if it has some. Raises UserError where others can read them."""
    path = home / CREDENTIALS_NAME
    if not path.is_file():
        return None
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise UserError(
            f"{path} must be readable by its owner alone, but its mode is "
            f"{stat.S_IMODE(path.stat().st_mode):o}; remove it after `bertsmith down`, and "
            "`bertsmith up` makes a new one"
        )
    user, _, password = path.read_text().strip().partition(":")
    if not password:
        raise UserError(
            f"{path} must hold name:password, but it does not; remove it after `bertsmith down`, "
            "and `bertsmith up` makes a new one"
        )
    return Credentials(user, password)


def make_credentials(home: Path) -> Credentials:
    """The credentials of this home; made, at random, where it has none."""
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
    with suppress(FileExistsError):  # another command made them at this very moment
        (home / CREDENTIALS_NAME).hardlink_to(draft)
    draft.unlink()
    made = read_credentials(home)
    assert made is not None
    return made


def _origins(page_url: str) -> tuple[str, str]:
    """The page by both names of this machine."""
    return page_url, page_url.replace("127.0.0.1", "localhost")
