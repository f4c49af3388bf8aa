"""The same application under Ray Serve: two replicas answer like the plain server."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flows.local.health import answers, free_port
from pipelines.registry.register import Submission, register
from pipelines.tracking.tracker import Tracker
from tests.pipelines.registry.test_serving import answered, command, untrained

pytestmark = pytest.mark.slow

_SERVES = """
import sys, time
import ray
from ray import serve
from infra.ray_serve import build

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(build({"model": "served@candidate", "home": sys.argv[2], "replicas": "2"}))
time.sleep(600)
"""


@contextmanager
def replicas(tracker: Tracker, home: Path) -> Iterator[str]:
    """The address of two replicas of the model `served`."""
    port, log = free_port(), home / "ray_serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVES, str(port), str(home)],
            env={**os.environ, "MLFLOW_TRACKING_URI": tracker.uri,
                 "PYTHONPATH": os.pathsep.join(filter(None, (str(Path.cwd()),
                                                             os.environ.get("PYTHONPATH"))))},
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 240
        while not answers(f"http://127.0.0.1:{port}/health"):
            if time.monotonic() > deadline or process.poll() is not None:
                pytest.fail(log.read_text()[-3000:])
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def milliseconds(address: str) -> float:
    """Of one query, at the median."""
    seconds = []
    for _ in range(60):
        start = time.perf_counter()
        answered(address, {"text": "a good sum"})
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[10:]) * 1000


def test_replicas_answer_like_the_plain_server(
    tracker: Tracker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("ray.serve", reason="pip install 'bertsmith[serve]'")
    submission = Submission(
        kind="classification", name="served", alias="candidate",
        artifact=untrained(tmp_path, "classification"), lineage={}, recipe_yaml="name: small\n",
    )  # fmt: skip
    register(submission, tracker)
    with command("served@candidate", tracker, tmp_path) as (_, address):
        plain, one = milliseconds(address), answered(address, {"text": "a good sum"})
    with replicas(tracker, tmp_path) as address:
        ray, other = milliseconds(address), answered(address, {"text": "a good sum"})
    assert other["label"] == one["label"]
    assert other["probability"] == pytest.approx(one["probability"], abs=1e-6)
    record_property("milliseconds of one query, plain and under Ray Serve", (plain, ray))
