"""The MLflow server of a home: who it lets in, and from which page."""

import base64
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.local.health import answers, free_port
from pipelines.tracking.address import login_variables

CREATE = "/api/2.0/mlflow/registered-models/create"
READ = "/api/2.0/mlflow/registered-models/get?name=mine"
NAME = "mlflow.example.org"
OWN = "Basic " + base64.b64encode(b"bertsmith:secret").decode()


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[str]:
    """The URL of a server; what it says never holds its password."""
    port = free_port()
    secret = login_variables(f"http://127.0.0.1:{port}", "bertsmith", "secret")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--app-name", "bertsmith",
             "--workers", "1", "--port", str(port), *arguments],
            env={**os.environ, **secret, **environment}, stdout=log, stderr=log,
        )  # fmt: skip
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
    try:
        while not answers(f"{url}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()
    assert "secret" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server on a home of its own (in a path with a space)."""
    home = tmp_path_factory.mktemp("a home")
    files = ["--default-artifact-root", (home / "files").as_uri(), "--no-serve-artifacts"]
    with served(home, "--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}", *files) as url:
        yield url


def status(url: str, body: bytes | None = None, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **named})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Basic d3Jvbmc6d3Jvbmc="},
        {"Authorization": OWN.replace("Basic", "Bearer")},
        {"Origin": "http://page.example"},
    ],
)
def test_nobody_reads_or_writes_without_the_password(
    server: str, headers: Mapping[str, str]
) -> None:
    for path in ("/", READ, "/static-files/index.html", "/graphql", "/metrics"):
        assert status(server + path, **headers) == 401
    assert status(server + CREATE, b'{"name": "theirs"}', **headers) == 401


@pytest.mark.parametrize(
    "origin", ["http://page.example", "http://127.0.0.1:9", "http://localhost:9", "null"]
)
def test_another_page_in_the_persons_browser_neither_writes_nor_reads(
    server: str, origin: str
) -> None:
    for path, body in ((CREATE, b'{"name": "theirs"}'), (READ, None), ("/", None)):
        assert status(server + path, body, Authorization=OWN, Origin=origin) == 403


def test_a_name_that_points_here_is_not_this_server(server: str) -> None:
    assert status(server + READ, Authorization=OWN, Host="page.example") == 403


def test_its_own_page_and_clients_read_and_write(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"name": "mine"}'
    assert status(server + CREATE, body, Authorization=OWN, Origin=server) == 200
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bertsmith")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    client = MlflowClient(server, server)
    assert [model.name for model in client.search_registered_models()] == ["mine"]


@pytest.mark.slow
def test_a_team_s_server_keeps_runs_in_its_database_and_files_behind_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "bertsmith")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
    kept = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{tmp_path / 'runs.db'}",
        "MLFLOW_ARTIFACTS_DESTINATION": (tmp_path / "files").as_uri(),
        "MLFLOW_SERVER_ALLOWED_HOSTS": f"{NAME},localhost,127.0.0.1:*",
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://{NAME},https://{NAME}",
    }
    (tmp_path / "note.txt").write_text("of a run")
    with served(tmp_path, **kept) as url:
        for scheme in ("http", "https"):  # the page behind a proxy that speaks TLS, or none
            page = {"Authorization": OWN, "Host": NAME, "Origin": f"{scheme}://{NAME}"}
            assert status(url + CREATE, b'{"name": "of-%s"}' % scheme.encode(), **page) == 200
        client = MlflowClient(url)
        run = client.create_run(client.create_experiment("proxied"))
        client.log_artifact(run.info.run_id, str(tmp_path / "note.txt"))
        assert run.info.artifact_uri.startswith("mlflow-artifacts:/")
        path = client.download_artifacts(run.info.run_id, "note.txt", str(tmp_path))
        assert Path(path).read_text() == "of a run"
        assert status(f"{url}/api/2.0/mlflow-artifacts/artifacts/x", b"mine") == 401
    assert [path.name for path in (tmp_path / "files").rglob("*.txt")] == ["note.txt"]
