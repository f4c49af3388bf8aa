"""A tracker that asks for a password: a URI that holds it works, and nothing keeps it."""

import http.server
import os
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from mlflow.exceptions import MlflowException

from pipelines.config.errors import UserError
from pipelines.tracking.tracker import Tracker


@contextmanager
def password_gate(server: str, seen: list[str]) -> Iterator[str]:
    """Passes requests on to `server` that name the user ann with her password; 401 to others."""

    expected = "Basic " + b64encode(b"ann:hidden-word").decode()

    class Gate(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            if self.headers.get("Authorization") != expected:
                self.send_error(401)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            answer = requests.request(
                self.command, server + self.path, data=body, timeout=20,
                headers={"Content-Type": self.headers.get("Content-Type") or "application/json"},
            )  # fmt: skip
            self.send_response(answer.status_code)
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate) as gate:
        thread = threading.Thread(target=gate.serve_forever)
        thread.start()
        yield f"127.0.0.1:{gate.server_address[1]}"
        gate.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """An MLflow server on the loopback and the folder of its files."""
    from flows.services.health import free_port

    folder, port = tmp_path_factory.mktemp("server"), free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1",
                "--port", str(port), "--workers", "1",
                "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
                "--artifacts-destination", str(folder / "files"),
            ],
            stdout=log, stderr=log,
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        )  # fmt: skip
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            except OSError:
                assert process.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield url, folder
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_password_in_the_uri_works_and_is_kept_nowhere(
    mlflow_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capfd, caplog
) -> None:
    server, folder = mlflow_server
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")
    seen: list[str] = []
    with password_gate(server, seen) as host:
        refused = Tracker(uri=f"http://{host}", experiment="tests")
        with pytest.raises(UserError, match="401"):
            refused.experiment_id()
        tracker = Tracker(uri=f"http://ann:hidden-word@{host}", experiment="tests")
        params = {"source": "s3://key:hidden-word@bucket/x"}
        run_id = tracker.create_run("training", "f1", params, {})
        tracker.log_text(run_id, "name: demo\n", "recipe.yaml")
        tracker.finish(run_id, {"accuracy": 0.5})
        assert seen
        with pytest.raises(MlflowException) as missing:
            tracker.client().get_run("0" * 32)
    with pytest.raises(UserError, match=r"at http://127.* does not answer") as away:
        tracker.experiment_id()  # the gate is gone
    written = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"name: demo" in written
    out, err = capfd.readouterr()
    told = (out, err, caplog.text, str(missing.value), str(away.value), repr(tracker))
    causes = (str(away.value.__cause__), tracker.shown_uri)
    assert b"hidden-word" not in written
    assert not [text for text in (*told, *causes) if "hidden-word" in text]
