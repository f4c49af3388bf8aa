"""Which server MLflow asks, and which user and password it finds in the environment for it.

MLflow sends MLFLOW_TRACKING_USERNAME and _PASSWORD to whatever server it is pointed at.
"""

import json
import os
import threading
from collections.abc import Mapping

from pipelines.core.redaction import Credentials, split_credentials

_USER, _PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
# The home's own server, whose password is for no other: it stays under names MLflow never reads.
HOME_ADDRESS = "BERTSMITH_MLFLOW_ADDRESS"
HOME_USER = "BERTSMITH_MLFLOW_USERNAME"
HOME_PASSWORD = "BERTSMITH_MLFLOW_PASSWORD"
# What stands in MLflow's variables for now, and what the person had there; processes that this
# one starts must tell the two apart as well.
_LENT = "BERTSMITH_MLFLOW_LENT"
_ADDRESSES = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
_lock = threading.Lock()

Pair = tuple[str | None, str | None]


def home_variables(address: str, user: str, password: str) -> Mapping[str, str]:
    """What tells this process and its children of the home's own server."""
    return {HOME_ADDRESS: address, HOME_USER: user, HOME_PASSWORD: password}


def server_address(uri: str) -> str:
    """The URI for MLflow; user and password for just this server go into its environment.

    There MLflow looks for them (MLFLOW_TRACKING_USERNAME and _PASSWORD), and writes them into no
    error message. Ask again before another server is used.
    """
    address, credentials = split_credentials(uri)
    sign_in(address, credentials)
    return address


def sign_in(address: str, named: Credentials | None) -> None:
    """Let MLflow find what the server at `address` may see, and nothing else.

    That is what its URI named; else the home's pair, if it is the home's server; else the
    person's own, as it stood in the environment.
    """
    with _lock:
        current: Pair = (os.environ.get(_USER), os.environ.get(_PASSWORD))
        own = _own(current)
        home: Pair = (os.environ.get(HOME_USER), os.environ.get(HOME_PASSWORD))
        if named is not None:
            wanted: Pair = (named.username, named.password)
        elif _is_home(address):
            wanted = home
        elif own == home:  # from `bertsmith env`, or from a parent that used the home's server
            wanted = (None, None)
        else:
            wanted = own
        if wanted == current:
            return
        os.environ[_LENT] = json.dumps({"lent": wanted, "own": own})
        for name, value in zip((_USER, _PASSWORD), wanted, strict=True):
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _own(current: Pair) -> Pair:
    """What the person exported, though another pair may stand there for now."""
    noted = json.loads(os.environ.get(_LENT) or "null")
    if noted is not None and tuple(noted["lent"]) == current:
        user, password = noted["own"]
        return user, password
    return current


def _is_home(address: str) -> bool:
    home = os.environ.get(HOME_ADDRESS)
    return home is not None and _plain(address) == _plain(home)


def _plain(address: str) -> str:
    """Both names of this machine's loopback are one server."""
    return address.rstrip("/").replace("://localhost:", "://127.0.0.1:", 1)


def make_default(address: str) -> None:
    """Make `address` this process's default server for runs and registered models.

    MLflow also writes it into the environment, for subprocesses. There the next run of this process
    would take it for an address that somebody named, and use it for another home: what the
    environment said before stays.
    """
    import mlflow  # the command line names the variables above without it

    with _lock:
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
