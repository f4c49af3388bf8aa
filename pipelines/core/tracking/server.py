"""An MLflow server of one home that asks every request who it is.

    python -m pipelines.core.tracking.server --port 5000 --home /path/of/the/home

Name and password come from BERTSMITH_MLFLOW_USERNAME and BERTSMITH_MLFLOW_PASSWORD. MLflow's own
`basic-auth` app would need two more packages, a user database and a slow hash for every request;
a home has one user: docs/decisions/0010.
"""

import argparse
import base64
import hmac
import os
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import pipelines.core.tracking.tracker  # noqa: F401  (MLflow's environment, before MLflow)
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


def serve(home: Path, port: int, user: str, password: str) -> None:
    """Serve the runs and models of `home` on the loopback until the process is told to end."""
    import uvicorn
    from mlflow import environment_variables
    from mlflow.server import constants
    from mlflow.server.handlers import initialize_backend_stores

    database, artifacts = f"sqlite:///{home / 'mlflow.db'}", (home / "mlartifacts").as_uri()
    # What `mlflow server` hands to the process that serves; the names are imported, so that
    # another MLflow, where they may differ, fails at once.
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
        environment_variables.MLFLOW_SERVER_ALLOWED_HOSTS.name: _HOSTS,
        environment_variables.MLFLOW_SERVER_CORS_ALLOWED_ORIGINS.name: (
            f"http://127.0.0.1:{port},http://localhost:{port}"
        ),
        environment_variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        environment_variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",  # never runs stored code
    }
    initialize_backend_stores(database, database, artifacts)

    from mlflow.server.fastapi_app import app

    uvicorn.run(Guard(app, user, password), host="127.0.0.1", port=port, access_log=False)


def main() -> None:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    serve(
        options.home,
        options.port,
        os.environ[HOME_USER],
        os.environ[HOME_PASSWORD],
    )


if __name__ == "__main__":
    main()
