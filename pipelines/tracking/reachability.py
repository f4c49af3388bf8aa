"""Whether a tracker can be there at all, found out in seconds and without importing MLflow."""

import os
import socket
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from pipelines.config.errors import UserError

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")
_DATABRICKS = ("databricks", "databricks-uc", "uc")
_CONNECT_SECONDS = 3.0
_PLUGINS = "mlflow.tracking_store"  # where packages announce further schemes to MLflow


def check_tracker_reachable(uri: str) -> None:
    """Return where an MLflow tracker may answer at `uri`; takes at most a few seconds.

    Raises UserError for a scheme that MLflow does not know, a host without a name or an open
    port, and a SQLite file that could not be written.
    """
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise UserError(
            f"runtime.tracking_uri={uri!r} is no address such as http://host:5000 ({error})"
        ) from None
    scheme = parts.scheme.partition("+")[0]  # a database may name its driver, as in mysql+pymysql
    if scheme in _SERVERS:
        _check_port(uri, parts.hostname or "", _port(uri), scheme)
    elif scheme == "sqlite":
        _check_writable(uri)
    elif uri not in _DATABRICKS and scheme not in (*_DATABASES, *_DATABRICKS, *_plugin_schemes()):
        raise UserError(
            f"runtime.tracking_uri={uri!r} begins with none of http://, https://, sqlite:///, "
            "postgresql:// and mysql://; leave it empty for SQLite in the home folder"
        )


def _port(uri: str) -> int | None:
    try:
        return urlsplit(uri).port
    except ValueError:
        raise UserError(
            f"the port in runtime.tracking_uri must be a number, found {uri!r}"
        ) from None


def _check_port(uri: str, host: str, port: int | None, scheme: str) -> None:
    if not host:
        raise UserError(
            f"runtime.tracking_uri must name a host, as http://host:5000, found {uri!r}"
        )
    if urllib.request.getproxies().get(scheme) and not urllib.request.proxy_bypass(host):
        return  # the proxy alone knows the way
    try:
        with socket.create_connection(
            (host, port or {"http": 80, "https": 443}[scheme]), timeout=_CONNECT_SECONDS
        ):
            pass
    except OSError as error:
        raise UserError(
            f"the MLflow tracker must answer at {uri}, but no connection could be made "
            f"({error.strerror or error}); start it (`bertsmith up`) or choose another tracking_uri"
        ) from error


def database_file(uri: str) -> Path | None:
    """The SQLite file at `uri`, which every process opens for itself; None for what serves many."""
    if not uri.startswith("sqlite"):
        return None
    return Path(_path_of(uri)).absolute()


def _path_of(uri: str) -> str:
    return urlsplit(uri).path.removeprefix("/")  # sqlite:////absolute and sqlite:///relative


def _check_writable(uri: str) -> None:
    path = _path_of(uri)
    if not path or path == ":memory:":
        raise UserError(
            f"runtime.tracking_uri={uri!r} names no SQLite file that other processes can open; "
            "write sqlite:////absolute/path/mlflow.db"
        )
    file = Path(path)
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(
            f"the tracker's database {file} cannot be written; make its folder, or choose another "
            "tracking_uri"
        )


def _plugin_schemes() -> set[str]:
    return {entry.name for entry in entry_points(group=_PLUGINS)}
