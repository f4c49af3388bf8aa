"""An MLflow server that asks every request who it is.

    python -m pipelines.tracking.server --port 5000 --home /path/of/the/home
    MLFLOW_BACKEND_STORE_URI=postgresql://… MLFLOW_ARTIFACTS_DESTINATION=s3://… \
        python -m pipelines.tracking.server --host 0.0.0.0 --allowed-hosts mlflow:5000

The first keeps everything in a home, for clients of this machine. The second is a team's: runs in
its database, files in its object store, which clients reach through the server alone. Addresses
with passwords come from the environment, because everybody on the machine sees arguments.

User and password are those of BERTSMITH_MLFLOW_LOGIN, http://user:password@host:port. MLflow's own
`basic-auth` app would need two more packages, a user database and a slow hash for every request:
docs/decisions/0010.

`bertsmith up` and `down` call `end_abandoned_runs`: open runs whose flow run is over become KILLED.
"""

import argparse
import hmac
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipelines.config.errors import Credentials, UserError
from pipelines.tracking.sign_in import LOGIN, authorization, home_login
from pipelines.tracking.tracker import server_address  # it sets the environment MLflow reads

_OPEN_PATHS = ("/health", "/version")  # they show nothing, and clients wait for a server by them
_ASK = {"WWW-Authenticate": 'Basic realm="Bertsmith: MLflow"'}
_HOSTS = "localhost,localhost:*,127.0.0.1,127.0.0.1:*"

FLOW_RUN_TAG = "bertsmith.flow_run"
_RUNS_AT_ONCE = 1000


class Guard:
    """Lets requests through that bring user and password, and come from no other page."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app = app
        self._expected = authorization(credentials).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # MLflow has none
            await send({"type": "websocket.close", "code": 1008})
            return
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            headers = Request(scope).headers
            given, origin = headers.get("authorization", ""), headers.get("origin")
            if not hmac.compare_digest(given.encode(), self._expected):
                app = PlainTextResponse("user and password are needed", 401, _ASK)
            elif origin is not None and origin.partition("://")[2] != headers.get("host"):
                # Another page's script: a browser brings the password along by itself.
                app = PlainTextResponse("only this server's own pages may ask", 403)
        await app(scope, receive, send)


def stores(home: Path | None, environment: Mapping[str, str]) -> tuple[str, str, str]:
    """Database, where clients put the files of new experiments, and where the server puts files
    that clients hand to it; the last is empty in a home, whose clients write files themselves.

    Without a home they are what `environment` names as MLflow calls them. Raises UserError where
    it names one of them alone, or none.
    """
    if home is not None:
        return f"sqlite:///{home / 'mlflow.db'}", (home / "mlartifacts").as_uri(), ""
    names = ("MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise UserError(
            "an MLflow server needs --home, or a database and a folder for files: set "
            f"{' and '.join(missing)}"
        )
    return environment[names[0]], "mlflow-artifacts:/", environment[names[1]]


def serve(home: Path | None, *, host: str, port: int, hosts: Sequence[str]) -> None:
    """Serve runs and models until the process is stopped.

    `hosts` are the names, with ports, that clients on other machines call this server by. Raises
    UserError where the environment does not say who may ask, or where to keep things.
    """
    _, credentials = home_login()
    if credentials is None:
        raise UserError(f"an MLflow server needs {LOGIN}=http://user:password@host:port; set it")
    database, artifacts, destination = stores(home, os.environ)
    import uvicorn
    from mlflow import environment_variables as variables

    names = (f"127.0.0.1:{port}", f"localhost:{port}", *hosts)
    # A page may come through a proxy that speaks TLS: the browser says https, this server http.
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    # What `mlflow server` sets for its child. The names are imported, so that another MLflow, where
    # they may differ, fails at once; these are read when mlflow.server is first imported.
    os.environ |= {
        variables.MLFLOW_SERVER_ALLOWED_HOSTS.name: ",".join((_HOSTS, *hosts)),
        variables.MLFLOW_SERVER_CORS_ALLOWED_ORIGINS.name: ",".join(origins),
        variables._MLFLOW_SERVER_BOOT_ID.name: uuid.uuid4().hex,
        variables._MLFLOW_IN_JOB_EXECUTOR.name: "false",  # never runs stored code
    }
    from mlflow.server import constants

    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: artifacts,
    }
    if destination:
        os.environ[constants.SERVE_ARTIFACTS_ENV_VAR] = "true"
        os.environ[constants.ARTIFACTS_DESTINATION_ENV_VAR] = destination
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(database, database, artifacts)

    from mlflow.server.fastapi_app import app

    app.add_middleware(Guard, credentials=credentials)
    uvicorn.run(app, host=host, port=port, access_log=False)


def end_abandoned_runs(uri: str, is_abandoned: Callable[[str], bool]) -> list[str]:
    """Set a server's open runs of abandoned flow runs to KILLED; returns their names.

    `is_abandoned(flow run id)` is asked for every open run that carries a flow run's tag.
    """
    from mlflow import MlflowClient
    from mlflow.entities import RunStatus, ViewType

    client = MlflowClient(tracking_uri=server_address(uri))
    experiments = client.search_experiments(view_type=ViewType.ACTIVE_ONLY)
    ended = []
    for run in client.search_runs(
        [experiment.experiment_id for experiment in experiments],
        "attributes.status = 'RUNNING'",
        max_results=_RUNS_AT_ONCE,
    ):
        flow_run = run.data.tags.get(FLOW_RUN_TAG)
        if flow_run and is_abandoned(flow_run):
            client.set_terminated(run.info.run_id, RunStatus.to_string(RunStatus.KILLED))
            ended.append(run.info.run_name or run.info.run_id)
    return ended


def main() -> None:
    """Serve as the command line and the environment say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--allowed-hosts", default="", help="names with ports, between commas")
    options = parser.parse_args()
    hosts = [name.strip() for name in options.allowed_hosts.split(",") if name.strip()]
    try:
        serve(options.home, host=options.host, port=options.port, hosts=hosts)
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
