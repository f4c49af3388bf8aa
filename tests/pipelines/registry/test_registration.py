"""A version in the registry: made once, mended where it broke off, its figures named truly."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from mlflow.exceptions import MlflowException

from pipelines.errors import UserError
from pipelines.registry.package import located, open_model
from tests.pipelines.registry.conftest import Models, package_of


def test_a_new_version_is_the_candidate_and_says_where_its_figures_come_from(
    models: Models,
) -> None:
    model = models.register(models.trained(1))
    assert (model.version, model.reused, model.is_verified) == (1, False, False)
    version = models.tracker.client().get_model_version_by_alias("encoder", "candidate")
    assert int(version.version) == 1
    assert version.tags["bertsmith.computed_on.device"] == "cpu"


def test_of_a_model_trained_with_another_tracker_the_machine_is_not_known(models: Models) -> None:
    model = models.register(models.encoder(1))
    tags = models.tracker.client().get_model_version("encoder", str(model.version)).tags
    assert not [key for key in tags if key.startswith("bertsmith.computed_on")]


@pytest.mark.parametrize(
    "table", ["registered_models", "model_versions", "registered_model_aliases"],
)  # fmt: skip
def test_a_registration_that_broke_off_is_mended_without_doubles(
    models: Models, table: str, tmp_path: Path
) -> None:
    """The database refuses one kind of row for once: the steps before it are done, no others."""
    artifact = models.trained(1)
    with refused(tmp_path / "mlflow.db", table), pytest.raises(MlflowException):
        models.register(artifact)
    assert_registered_once(models)


def test_an_upload_that_broke_off_is_mended(models: Models, tmp_path: Path) -> None:
    artifact = models.trained(1)
    files = tmp_path / "files"
    models.tracker.experiment_id()
    (files / "models").parent.mkdir(exist_ok=True)
    (files / "models").write_text("a file where a folder must be")
    with pytest.raises((MlflowException, OSError)):
        models.register(artifact)
    (files / "models").unlink()
    assert_registered_once(models)


def test_a_file_may_take_longer_than_a_metric_may(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with slow_files(tmp_path / "served") as url:
        models.tracker = replace(models.tracker, experiment="slow", artifact_location=url)
        model = models.register(models.trained(1))
        open_model(models.tracker, model.reference)
    assert list((tmp_path / "served").rglob("model.safetensors"))


@contextmanager
def slow_files(root: Path) -> Iterator[str]:
    """The URL of a file server, as MLflow speaks to one; weights take it 1.5 s."""

    class Files(SimpleHTTPRequestHandler):
        def do_PUT(self) -> None:
            path = Path(self.translate_path(self.path))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self.answer(b"{}")

        def do_GET(self) -> None:
            folder = Path(self.translate_path(self.path))
            if folder.is_file():
                return self.answer(folder.read_bytes())
            folder /= parse_qs(urlsplit(self.path).query).get("path", [""])[0].lstrip("/")
            files = [
                {"path": file.name, "is_dir": file.is_dir(), "file_size": file.stat().st_size}
                for file in (folder.iterdir() if folder.is_dir() else ())
            ]
            return self.answer(json.dumps({"files": files}).encode())

        def answer(self, content: bytes) -> None:
            time.sleep(1.5 * self.path.endswith("model.safetensors"))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *message: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=root)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/mlflow-artifacts/artifacts/all"
        server.shutdown()


def assert_registered_once(models: Models) -> None:
    artifact = models.encoder(1)
    model = models.register(artifact)
    client = models.tracker.client()
    assert model.version == 1
    assert len(client.search_model_versions("name = 'encoder'")) == 1
    assert int(client.get_model_version_by_alias("encoder", "candidate").version) == 1
    (version,) = client.search_model_versions("name = 'encoder'")
    logged = client.get_logged_model(version.source.removeprefix("models:/"))
    assert str(logged.status) == "READY"
    with located(models.tracker, "encoder@candidate") as folder:
        assert folder.is_dir()


def test_a_damaged_package_is_repaired_as_its_message_says(models: Models) -> None:
    artifact = models.trained(1)
    damaged = models.register(artifact)
    weights = package_of(models, damaged) / "artifacts" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="delete the version and register its model again"):
        open_model(models.tracker, damaged.reference)
    models.tracker.client().delete_model_version("encoder", "1")
    repaired = models.register(artifact)
    assert (repaired.version, repaired.reused) == (2, False)
    open_model(models.tracker, repaired.reference)


@contextmanager
def refused(database: Path, table: str) -> Iterator[None]:
    """While it lasts, the database takes no row into `table`."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(
            f"CREATE TRIGGER away BEFORE INSERT ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'the disk is away'); END"
        )
        connection.commit()
        yield
        connection.execute("DROP TRIGGER away")
        connection.commit()
