"""A tracker behind http that fails, blinks or asks for a password; and runs that are stopped."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import requests
from mlflow.exceptions import MlflowException
from s3fs import S3FileSystem

from pipelines.errors import UserError
from pipelines.registry.find import find_source
from pipelines.stage import StageContext
from pipelines.store import ArtifactStore, Built, Draft
from pipelines.tracking.tracker import Tracker, is_transient
from pipelines.train.metrics import HISTORY_FILE, finish_run, open_run


@pytest.fixture(scope="module")
def local_tracker(tmp_path_factory: pytest.TempPathFactory) -> Tracker:
    """A tracker on SQLite; its database is made once for these tests."""
    folder = tmp_path_factory.mktemp("tracker")
    return Tracker(
        uri=f"sqlite:///{folder / 'mlflow.db'}",
        experiment="tests",
        artifact_location=(folder / "files").as_uri(),
    )


class Broken(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status that the server was told, and a page of HTML."""

    status = 503

    def do_GET(self) -> None:
        body = b"<html>no tracker here</html>"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def broken_server(status: int) -> Iterator[str]:
    handler = type("Handler", (Broken,), {"status": status})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def trouble_of(uri: str) -> MlflowException:
    with pytest.raises(MlflowException) as told:
        Tracker(uri=uri, experiment="tests").client().search_registered_models()
    return told.value


@pytest.mark.parametrize("status", [500, 502, 503, 504, 429])
def test_a_server_that_is_busy_or_broken_is_worth_another_try(status: int) -> None:
    with broken_server(status) as uri:
        assert is_transient(trouble_of(uri))
        with pytest.raises(UserError, match=f"the MLflow tracker at {uri} failed") as told:
            Tracker(uri=uri, experiment="tests").experiment_id()
        assert is_transient(told.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not(status: int) -> None:
    with broken_server(status) as uri:
        assert not is_transient(trouble_of(uri))


def test_a_refused_connection_is_worth_another_try() -> None:
    assert is_transient(trouble_of("http://127.0.0.1:9"))
    with pytest.raises(requests.RequestException) as told:
        requests.get("http://127.0.0.1:9", timeout=5)
    assert is_transient(told.value)


def test_what_is_missing_stays_missing(local_tracker: Tracker) -> None:
    tracker = local_tracker
    with pytest.raises(MlflowException) as told:
        tracker.client().get_run("nothing")
    assert not is_transient(told.value)
    with pytest.raises(UserError, match="no model 'encoder' with") as missing:
        find_source(tracker.client(), "encoder", "champion")
    assert not is_transient(missing.value)
    assert not is_transient(FileNotFoundError(2, "no such file"))
    assert not is_transient(ValueError("a mistake"))
    with pytest.raises(MlflowException) as away:  # and not: the registry holds none
        find_source(Tracker(uri="http://127.0.0.1:9", experiment="t").client(), "encoder", "1")
    assert is_transient(away.value)


def test_a_store_that_is_away_is_worth_another_try_and_one_without_credentials_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with pytest.raises(UserError, match=r"cannot be used: .*AWS_ENDPOINT_URL") as told:
        ArtifactStore("s3://bucket/store").find("corpus", "0" * 32)
    assert is_transient(told.value)
    S3FileSystem.clear_instance_cache()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
    with pytest.raises(UserError, match=r"cannot be used: .*AWS_ACCESS_KEY_ID") as told:
        ArtifactStore("s3://bucket/store").find("corpus", "0" * 32)
    assert not is_transient(told.value)
    S3FileSystem.clear_instance_cache()


class Stopped(BaseException):
    """As a scheduler's termination signal."""


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (KeyboardInterrupt, "KILLED"), (SystemExit, "KILLED"), (Stopped, "KILLED"),
        (ValueError, "FAILED"), (None, "FINISHED"),
    ],
)  # fmt: skip
def test_a_training_that_was_stopped_is_killed_and_not_failed(
    raised: type[BaseException] | None,
    status: str,
    small_context: StageContext,
    local_tracker: Tracker,
) -> None:
    tracker = local_tracker
    context = StageContext(store=small_context.store, tracker=tracker)
    run_ids: list[str | None] = []

    def build(draft: Draft) -> Built:
        with open_run("pretraining", {}, draft, context) as run_id:
            run_ids.append(run_id)
            if raised is not None:
                raise raised("so it ended")
        draft.write(HISTORY_FILE, b"[]")
        statistics = {"eval/accuracy": 0.5, "computed_on": {"processor": "of the worker"}}
        return Built([HISTORY_FILE], statistics)

    with pytest.raises(raised) if raised is not None else nullcontext():
        encoder = context.store.get_or_build(
            "encoder", version=1, settings={}, inputs={"ends": str(raised)}, build=build
        )
        finish_run(encoder, context)
    run = tracker.client().get_run(str(run_ids[0]))
    assert run.info.status == status
    assert ("bertsmith.computed_on.processor" in run.data.tags) == (status == "FINISHED")
