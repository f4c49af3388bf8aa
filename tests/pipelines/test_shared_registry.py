"""A registry that several teams share: what is asked of it, and what it does not let us see."""

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.registry.find import KIND_TAG, VERIFIED_TAG, list_models, newest_of
from pipelines.tracking.tracker import Tracker
from tests.pipelines.trackers import home, server_port, tracker

__all__ = ["home", "server_port", "tracker"]

pytestmark = pytest.mark.slow  # an MLflow server

_CLOSED = ("/mlflow/runs/get?", "/mlflow/registered-models/get?name=closed")


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def gate(server_port: int, asked: list[str]) -> Iterator[str]:
    """The address of a door to the server that keeps some of it from us, as MLflow's own does."""

    class Gate(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if any(closed in self.path for closed in _CLOSED):
                refusal = {"error_code": "PERMISSION_DENIED", "message": "Permission denied"}
                self._answer(403, json.dumps(refusal).encode())
                return
            connection = http.client.HTTPConnection("127.0.0.1", server_port, timeout=60)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {"Content-Type": "application/json"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            self._answer(answer.status, answer.read())
            connection.close()

        do_POST = do_GET  # noqa: N815

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gate) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def registered(tracker: Tracker, folder: Path, name: str, count: int, tags: dict[str, str]) -> None:
    client, experiment = tracker.client(), tracker.experiment_id()
    client.create_registered_model(name)
    for _ in range(count):
        run_id = client.create_run(experiment).info.run_id
        client.create_model_version(name, source=str(folder), run_id=run_id, tags=tags)


def test_the_server_looks_for_the_model_and_others_things_stay_theirs(
    tracker: Tracker, tmp_path: Path, gate: str, asked: list[str]
) -> None:
    proved = {KIND_TAG: "classification", VERIFIED_TAG: "true"}
    registered(tracker, tmp_path, "ours", 3, proved)
    registered(tracker, tmp_path, "theirs", 12, {"team": "another"})
    registered(tracker, tmp_path, "closed", 1, proved)
    tracker.client().set_registered_model_alias("ours", "champion", "2")
    shared = Tracker(uri=gate, experiment="tests")
    assert newest_of(shared.client(), ["classification", "multi_label"]) == "ours/2"
    assert len(asked) == 4, asked  # each kind, and the aliases of each name that has such versions
    rows = list_models(shared)
    assert len(rows) == 16
    assert {row.value for row in rows} == {None}
