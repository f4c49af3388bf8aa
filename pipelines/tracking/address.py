"""The address of a tracker: whether it can be one, and the password of the home's own server.

Nothing here imports MLflow at its start. For any other server MLflow itself sends what
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD hold.
"""

import os
import socket
import sqlite3
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from pipelines.errors import UserError

# http://user:password@host:port of the server whose password this is; MLflow never reads this name.
LOGIN: Final = "BERTSMITH_MLFLOW_LOGIN"
_PROVIDER: Final = "bertsmith"  # as pyproject.toml announces `HomeLogin` to MLflow
_PORTS = {"http": 80, "https": 443}
_OTHERS = ("postgresql", "mysql", "mssql", "databricks", "databricks-uc")
_CONNECT_SECONDS = 3.0


def login_variables(address: str, user: str, password: str) -> Mapping[str, str]:
    """What lets this process and its children into the server at `address`, and no other."""
    scheme, _, rest = address.partition("://")
    login = f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"
    return {LOGIN: login, "MLFLOW_TRACKING_AUTH": _PROVIDER}


def authorization() -> str:
    """The header of HTTP that brings the user and password of `LOGIN`; empty without one."""
    parts = urlsplit(os.environ.get(LOGIN, ""))
    if not parts.username or not parts.password:
        return ""
    text = f"{unquote(parts.username)}:{unquote(parts.password)}"
    return "Basic " + b64encode(text.encode()).decode()


class HomeLogin:
    """MLflow's `request_auth_provider`: the home's password goes to the home's server alone."""

    def get_name(self) -> str:
        """As MLFLOW_TRACKING_AUTH calls it."""
        return _PROVIDER

    def get_auth(self) -> "HomeLogin":
        """What `requests` calls with each request."""
        return self

    def __call__(self, request: Any) -> Any:
        """The prepared request, with the header that its server may see."""
        header = authorization()
        if header and _origin(request.url) == _origin(os.environ[LOGIN]):
            request.headers["Authorization"] = header
        return request


def _origin(address: str) -> str:
    """Scheme, host and port; both names of this machine's loopback are one server."""
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS.get(parts.scheme)}"


def check_tracker_reachable(uri: str) -> None:
    """Raise UserError, within seconds, where no MLflow tracker can answer at `uri`."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise UserError(
            f"runtime.tracking_uri={uri!r} is no address such as http://host:5000 ({error})"
        ) from None
    scheme = parts.scheme.partition("+")[0]  # a database may name its driver, as in mysql+pymysql
    if scheme == "sqlite":
        file = Path(_path_of(uri))
        if not os.access(file if file.exists() else file.parent, os.W_OK) or file.is_dir():
            raise UserError(
                f"the tracker's database {file} cannot be written; name a file in a folder that "
                "exists, as in sqlite:////absolute/path/mlflow.db"
            )
        _check_is_mlflows(file)
    elif scheme in _PORTS:
        if parts.password:
            raise UserError(
                f"the address of the tracker {parts.hostname} holds a password; give it as "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        host = parts.hostname or ""
        if urllib.request.getproxies().get(scheme) and not urllib.request.proxy_bypass(host):
            return  # the proxy alone knows the way
        try:
            address = (host, port or _PORTS[scheme])
            socket.create_connection(address, timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise UserError(
                f"the MLflow tracker at {uri} does not answer ({error.strerror or error}); start "
                "it (`bertsmith up`) or choose another tracking_uri"
            ) from error
    elif (scheme or uri) not in _OTHERS:
        raise UserError(
            f"runtime.tracking_uri={uri!r} begins with none of http://, https://, sqlite:///, "
            "postgresql:// and mysql://; leave it empty for SQLite in the home folder"
        )


def _check_is_mlflows(file: Path) -> None:
    """Raise UserError for a file that another program wrote: MLflow would add its tables to it."""
    tables = set[str]()
    address = f"{file.absolute().as_uri()}?mode=ro"
    # Of what is no database, or not there yet, MLflow tells.
    with suppress(sqlite3.Error), closing(sqlite3.connect(address, uri=True)) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
    if tables and "experiments" not in tables:
        raise UserError(f"{file} is another program's database; name one of MLflow's, or a new one")


def database_file(uri: str) -> Path | None:
    """The SQLite file at `uri`, which every process opens for itself; None for what serves many."""
    return Path(_path_of(uri)).absolute() if uri.startswith("sqlite") else None


def _path_of(uri: str) -> str:
    return urlsplit(uri).path.removeprefix("/")  # sqlite:////absolute and sqlite:///relative
