"""An MLflow server that asks every request who it is.

    python -m pipelines.core.tracking.server --port 5000 --home /path/of/the/home
    MLFLOW_BACKEND_STORE_URI=postgresql://… MLFLOW_ARTIFACTS_DESTINATION=s3://… \
        python -m pipelines.core.tracking.server --host 0.0.0.0 --allowed-hosts mlflow:5000

The first keeps everything in a home, for clients of this machine. The second is a team's: runs in
its database, files in its object store, which clients reach through the server alone. Both URIs
come from the environment, because one of them holds a password and everybody sees arguments.

Name and password come from BERTSMITH_MLFLOW_USERNAME and BERTSMITH_MLFLOW_PASSWORD. MLflow's own
`basic-auth` app would need two more packages, a user database and a slow hash for every request:
docs/decisions/0010.
"""

import argparse
import base64
import hmac
import os
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pipelines.core.tracking.tracker  # noqa: F401  (MLflow's environment, before MLflow)
from pipelines.core.errors import UserError
from pipelines.core.tracking.sign_in import HOME_PASSWORD, HOME_USER

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_OPEN_PATHS = ("/health", "/version")  # they tell nothing, and are how one waits for a server
_ASK = ((b"www-authenticate", b'Basic realm="Bertsmith: MLflow"'),)
_HOSTS = "localhost,localhost:*,127.0.0.1,127.0.0.1:*"


class Guard:
    """Lets requests through that bring name and password, and come from no other page."""

    def __init__(self, application: Application, user: str, password: str) -> None:
        self._application = application
        self._expected = b"Basic " + base64.b64encode(f"{user}:{password}".encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in _OPEN_PATHS:
            await self._application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await _refuse(send, 401, "name and password are needed", _ASK)
        elif _is_foreign(headers):
            await _refuse(send, 403, "only this server's own pages may ask")
        else:
            await self._application(scope, receive, send)


def _is_foreign(headers: MutableMapping[bytes, bytes]) -> bool:
    """Whether another page's script asks: a browser brings the password along by itself."""
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


async def _refuse(
    send: Send, status: int, sentence: str, more: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": sentence.encode()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where a server keeps what it is told."""

    database: str = field(repr=False)  # runs and the registry; its URI may hold a password
    artifacts: str  # where clients are told to put the files of new experiments
    destination: str = ""  # where the server puts files that clients hand to it

    @classmethod
    def in_home(cls, home: Path) -> "Kept":
        """All of it in a home, whose clients write files themselves."""
        database = f"sqlite:///{home / 'mlflow.db'}"
        return cls(database=database, artifacts=(home / "mlartifacts").as_uri())

    @classmethod
    def by_reference(cls, environment: Mapping[str, str]) -> "Kept":
        """In the database and the object store that `environment` names as MLflow calls them.

        Raises UserError where it names one of them alone, or none.
        """
        names = ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION")
        missing = [name for name in names if not environment.get(name)]
        if missing:
            raise UserError(
                f"an MLflow server needs --home, or {' and '.join(names)} in its environment, "
                f"found no {' and no '.join(missing)}"
            )
        database, destination = (environment[name] for name in names)
        return cls(database=database, artifacts="mlflow-artifacts:/", destination=destination)

    def variables(self) -> dict[str, str]:
        """What `mlflow server` hands to the process that serves.

        The names are imported, so that another MLflow, where they may differ, fails at once.
        """
        from mlflow.server import constants

        proxied = {
            constants.SERVE_ARTIFACTS_ENV_VAR: "true",
            constants.ARTIFACTS_DESTINATION_ENV_VAR: self.destination,
        }
        return {
            constants.BACKEND_STORE_URI_ENV_VAR: self.database,
            constants.REGISTRY_STORE_URI_ENV_VAR: self.database,
            constants.ARTIFACT_ROOT_ENV_VAR: self.artifacts,
            **(proxied if self.destination else {}),
        }


def serve(
    kept: Kept, user: str, password: str, *, host: str, port: int, hosts: Sequence[str]
) -> None:
    """Serve runs and models until the process is told to end.

    `hosts` are the names, with ports, that clients on other machines call this server by.
    """
    import uvicorn
    from mlflow import environment_variables

    names = (f"127.0.0.1:{port}", f"localhost:{port}", *hosts)
    # A page may come through a proxy that speaks TLS: the browser says https, this server http.
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    # Before anything of mlflow.server is imported: its application reads these as it is made.
    os.environ |= {
        environment_variables.MLFLOW_SERVER_ALLOWED_HOSTS.name: ",".join((_HOSTS, *hosts)),
        environment_variables.MLFLOW_SERVER_CORS_ALLOWED_ORIGINS.name: ",".join(origins),
        environment_variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        environment_variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",  # never runs stored code
    }
    os.environ |= kept.variables()
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(kept.database, kept.database, kept.artifacts)

    from mlflow.server.fastapi_app import app

    uvicorn.run(Guard(app, user, password), host=host, port=port, access_log=False)


def main() -> None:
    """Serve as the command line and the environment say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--allowed-hosts", default="", help="names with ports, between commas")
    options = parser.parse_args()
    try:
        serve(
            Kept.in_home(options.home) if options.home else Kept.by_reference(os.environ),
            _required(HOME_USER),
            _required(HOME_PASSWORD),
            host=options.host,
            port=options.port,
            hosts=[name.strip() for name in options.allowed_hosts.split(",") if name.strip()],
        )
    except UserError as error:
        sys.exit(str(error))


def _required(name: str) -> str:
    """Of the environment: without it anybody would be let in."""
    value = os.environ.get(name, "")
    if not value:
        raise UserError(f"an MLflow server needs {name} in its environment, found none")
    return value


if __name__ == "__main__":
    main()
