"""An MLflow server of the tests' own, and one that falls silent before it, as fixtures."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.tracking.tracker import Tracker
from tests.waiting import wait_for


class FickleTracker:
    """Stands before an MLflow server: passes on what it is sent, or takes it and never answers."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.answers = True
        self.num_asked = 0  # connections
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in [self._socket, *self._open]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self._open.append(client)
            self.num_asked += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._open.append(server)
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            self._copy(client, server)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self.answers:
                    return  # the connection stays open, and nothing comes
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracker")


@pytest.fixture(scope="module")
def tracker(home: Path) -> Tracker:
    """A tracker on SQLite; its database is made once for these tests."""
    return Tracker(
        uri=f"sqlite:///{home / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(home / "files").as_uri(),
    )


@pytest.fixture(scope="module")
def server_port(tracker: Tracker, home: Path) -> Iterator[int]:
    """An MLflow server over the same database."""
    tracker.experiment_id()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracker.uri]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home,
    )  # fmt: skip

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
        return False

    wait_for(answers, "the MLflow server")
    yield port
    process.terminate()
    process.wait()


@pytest.fixture
def fickle(server_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FickleTracker]:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    proxy = FickleTracker(server_port)
    yield proxy
    proxy.close()
