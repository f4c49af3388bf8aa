"""Which server MLflow asks, with which user and password, and whether it can be there at all.

The sign-in is chosen by address for each request, and nothing here imports MLflow at its start.
MLflow itself sends MLFLOW_TRACKING_USERNAME and _PASSWORD to whatever server it is pointed at, and
writes the address of its default server into the environment.
"""

import os
import socket
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from pipelines.config.errors import Credentials, UserError, split_credentials

# http://user:password@host:port of the home's own server; MLflow never reads this name.
LOGIN: Final = "BERTSMITH_MLFLOW_LOGIN"
_PROVIDER: Final = "bertsmith"  # as MLFLOW_TRACKING_AUTH calls `SignIn`
_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")
_DATABRICKS = ("databricks", "databricks-uc", "uc")
_CONNECT_SECONDS = 3.0
_PLUGINS = "mlflow.tracking_store"  # where packages announce further schemes to MLflow
_one_at_a_time = threading.Lock()
_of_uris: dict[str, Credentials] = {}  # by origin: what the URI of a tracker named


def home_variables(address: str, user: str, password: str) -> Mapping[str, str]:
    """What tells this process and its children of the home's own server."""
    scheme, _, rest = address.partition("://")
    return {LOGIN: f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{rest}"}


def home_login() -> tuple[str, Credentials | None]:
    """The address of the home's own server and who it lets in; empty where there is none."""
    return split_credentials(os.environ.get(LOGIN, ""))


def authorization(credentials: Credentials) -> str:
    """The header of HTTP that brings user and password."""
    return "Basic " + b64encode(":".join(credentials).encode()).decode()


def sign_in(address: str, credentials: Credentials | None) -> None:
    """From now on requests to the server at `address` bring `credentials`, which its URI named.

    Without any they bring what `SignIn` says. A person's own provider is left as it is.
    """
    if not address.startswith("http"):
        return
    _register()
    os.environ.setdefault("MLFLOW_TRACKING_AUTH", _PROVIDER)
    if credentials is None:
        _of_uris.pop(_origin(address), None)
    else:
        _of_uris[_origin(address)] = credentials


@cache
def _register() -> None:
    """As a plugin's entry point would, but also where Ray has only unpacked our code."""
    from mlflow.tracking.request_auth.registry import _request_auth_provider_registry

    _request_auth_provider_registry.register(SignIn)


def make_default(address: str) -> None:
    """Make `address` this process's default server for runs and registered models.

    MLflow also writes it into the environment, for subprocesses. There the next run of this process
    would take it for the user's own setting, and use it for another home: so it is undone.
    """
    import mlflow  # seconds that who only names the home's server need not spend

    with _one_at_a_time:
        named = {name: os.environ.get(name) for name in _ADDRESSES}
        try:
            mlflow.set_tracking_uri(address)
            mlflow.set_registry_uri(address)
        finally:
            for name, before in named.items():
                if before is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = before


class SignIn:
    """MLflow's `request_auth_provider`: adds user and password to each request by its address.

    A server is sent what its URI named; the home's own server the home's; any other what the
    person exported, unless that is the home's.
    """

    def get_name(self) -> str:
        """As MLFLOW_TRACKING_AUTH calls it."""
        return _PROVIDER

    def get_auth(self) -> "SignIn":
        """What `requests` calls with each request."""
        return self

    def __call__(self, request: Any) -> Any:
        """The prepared request, with the header that its server may see."""
        home, of_home = home_login()
        wanted = _of_uris.get(_origin(request.url))
        if wanted is None and of_home is not None and _origin(request.url) == _origin(home):
            wanted = of_home
        if wanted is not None:
            request.headers["Authorization"] = authorization(wanted)
        elif of_home is not None and request.headers.get("Authorization") == authorization(of_home):
            del request.headers["Authorization"]  # exported by `bertsmith env`
        return request


def _origin(address: str) -> str:
    """Scheme, host and port; both names of this machine's loopback are one server."""
    parts = urlsplit(address)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or {'http': 80, 'https': 443}.get(parts.scheme)}"


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
        raise UserError(f"the port in runtime.tracking_uri must be a number, got {uri!r}") from None


def _check_port(uri: str, host: str, port: int | None, scheme: str) -> None:
    if not host:
        raise UserError(f"runtime.tracking_uri={uri!r} names no host; write it as http://host:5000")
    if urllib.request.getproxies().get(scheme) and not urllib.request.proxy_bypass(host):
        return  # the proxy alone knows the way
    try:
        with socket.create_connection(
            (host, port or {"http": 80, "https": 443}[scheme]), timeout=_CONNECT_SECONDS
        ):
            pass
    except OSError as error:
        raise UserError(
            f"the MLflow tracker at {uri} does not answer ({error.strerror or error}); start it "
            "(`bertsmith up`) or choose another tracking_uri"
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
