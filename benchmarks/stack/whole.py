"""A team's platform on one machine: PostgreSQL, S3, Prefect, MLflow, and Prefect workers.

Each server has its own process and folder; all of them listen only on the loopback.
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.alternating import ROOT
from benchmarks.stack.object_store import BUCKET, ObjectStore
from benchmarks.stack.postgres import Postgres, binaries
from benchmarks.stack.processes import Server
from flows.services.health import answers, free_port
from flows.services.home_servers import Login

STORE = f"s3://{BUCKET}/store"
_FOREIGN = ("PREFECT_", "MLFLOW_", "BERTSMITH_", "AWS_", "RAY_")


def missing_servers() -> str:
    """What must still be installed for a platform, in a sentence; empty if nothing."""
    if binaries() is None:
        return "PostgreSQL's server must be installed (Debian: postgresql)"
    try:
        import psycopg2  # noqa: F401
    except ImportError:
        return "psycopg2 must be installed for MLflow on PostgreSQL (pip install '.[servers]')"
    return ""


class Stack:
    """The servers, and the environment of their clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.postgres = Postgres(folder)
        self.store = ObjectStore(folder)
        self.login = Login("bertsmith", secrets.token_urlsafe(18))
        self.prefect_url = f"http://127.0.0.1:{free_port()}"
        self.mlflow_url = f"http://127.0.0.1:{free_port()}"
        self.prefect = self._prefect()
        self.mlflow = self._mlflow()
        self.workers: list[Server] = []

    def start(self) -> None:
        """Start all servers and wait until they answer."""
        self.postgres.start()
        for database in ("prefect", "mlflow"):
            self.postgres.create(database)
        self.store.start()
        self.prefect.start(lambda: answers(f"{self.prefect_url}/api/health"))
        self.mlflow.start(lambda: answers(f"{self.mlflow_url}/health"))

    def stop(self) -> None:
        """Stop everything, dependents first, even if something fails."""
        with ExitStack() as last_first:
            last_first.callback(self.postgres.stop)
            last_first.callback(self.store.stop)
            for server in (self.prefect, self.mlflow, *self.workers):
                last_first.callback(server.stop)

    def start_worker(self, name: str, pool: str, **environment: str) -> Server:
        """Start a worker of a work pool, in its own folders, with this environment in addition."""
        folder = self.folder / name
        for own in ("home", "cache"):
            (folder / own).mkdir(parents=True)
        server = Server(
            f"Prefect worker {name}",
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--name", name],
            {**self.clients(folder), "PREFECT_WORKER_QUERY_SECONDS": "2", **environment},
            folder / "log",
        )
        self.workers.append(server)
        server.start(lambda: "started!" in server.log.read_text(errors="replace"))
        return server

    def clients(self, folder: Path) -> dict[str, str]:
        """The environment of a client whose own files are in `folder`."""
        return {
            **_plain_environment(),
            "HOME": str(folder / "home"),
            "PREFECT_HOME": str(folder / "prefect"),
            "BERTSMITH_HOME": str(folder / "bertsmith"),
            "BERTSMITH_CACHE": str(folder / "cache"),
            "BERTSMITH_STORE": STORE,
            "PREFECT_API_URL": f"{self.prefect_url}/api",
            **self.login.for_prefect_clients(),
            "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
            "MLFLOW_TRACKING_URI": self.mlflow_url,
            "MLFLOW_TRACKING_USERNAME": self.login.user,
            "MLFLOW_TRACKING_PASSWORD": self.login.password,
            **self.store.environment(),
        }

    def _prefect(self) -> Server:
        host, _, port = self.prefect_url.removeprefix("http://").partition(":")
        command = [sys.executable, "-m", "prefect", "server", "start"]
        return Server(
            "Prefect server",
            [*command, "--host", host, "--port", port],
            {
                **_plain_environment(),
                "PREFECT_HOME": str(self.folder / "prefect-server"),
                "PREFECT_SERVER_DATABASE_CONNECTION_URL": self.postgres.uri(
                    "prefect", "postgresql+asyncpg"
                ),
                "PREFECT_UI_API_URL": f"{self.prefect_url}/api",
                "PREFECT_SERVER_METRICS_ENABLED": "true",
                "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
                    "prefect.server.concurrency.lease_storage.filesystem"
                ),
                "PREFECT_SERVER_API_AUTH_STRING": self.login.text,
                "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
            },
            self.folder / "prefect-server.log",
        )

    def _mlflow(self) -> Server:
        port = self.mlflow_url.rpartition(":")[2]
        return Server(
            "MLflow server",
            [
                sys.executable,
                "-m",
                "mlflow",
                "server",
                "--app-name",
                "bertsmith",
                "--workers",
                "1",
                "--port",
                port,
            ],
            {
                **_plain_environment(),
                **self.login.for_mlflow_clients(self.mlflow_url),
                "MLFLOW_BACKEND_STORE_URI": self.postgres.uri("mlflow"),
                "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                **self.store.environment(),
            },
            self.folder / "mlflow-server.log",
        )


@contextmanager
def started_stack() -> Iterator[Stack]:
    """A platform in its own folder, stopped and removed on exit."""
    folder = Path(tempfile.mkdtemp(prefix="s-"))  # short: it contains sockets
    folder.chmod(0o755)  # PostgreSQL runs as another user
    stack = None
    try:
        stack = Stack(folder)
        stack.start()
        yield stack
    finally:
        if stack is not None:
            stack.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _plain_environment() -> Mapping[str, str]:
    """The environment of this process, without what points to other servers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join(paths),
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "pipelines,bert_core",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    }
