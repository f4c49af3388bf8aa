"""Fifty runs of a deployment, queued at once: none is lost, none runs twice.

    python benchmarks/load.py                  # ten to twenty minutes
    python benchmarks/load.py --runs 10 --at-once 2

Each run is the corpus flow over a different text, on a platform of real servers: Prefect on
PostgreSQL, S3, MLflow, a Ray node, and two workers of one pool, which must not take the same run.
"""

import argparse
import json
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import report
from benchmarks.raylets import raylets
from benchmarks.stack.object_store import BUCKET
from benchmarks.stack.runs import UNAVAILABLE, bertsmith, call, client_of
from benchmarks.stack.whole import Stack, missing_servers, started_stack

_POOL = "bertsmith-data"
_NUM_WORKERS = 2
_POLL_SECONDS = 5.0
_MAX_SECONDS = 7200.0


@dataclass
class Measurements:
    """What was measured during the runs."""

    peak_bytes: dict[str, int] = field(default_factory=Counter)
    api_seconds: list[float] = field(default_factory=list)
    unanswered: int = 0  # calls of the API

    def update_peak(self, name: str, size: int) -> None:
        """A process, or all processes of a server, used `size` bytes."""
        self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), size)


@dataclass(frozen=True)
class FinishedRun:
    """One run in Prefect's history."""

    state: str
    num_starts: int  # times that it entered the state Running
    due: float  # seconds since the epoch, like the others
    started: float  # NaN if it never started
    ended: float


def text_of(number: int) -> bytes:
    """A small text that no other run reads."""
    sentences = [
        f"Sentence {line} of the text number {number} says that {line * number % 97} is a number."
        for line in range(200)
    ]
    return "\n\n".join(" ".join(sentences[at : at + 4]) for at in range(0, 200, 4)).encode()


def queue_runs(stack: Stack, num_runs: int) -> tuple[list[UUID], list[float]]:
    """Queue runs that are due at once; returns them and the seconds to queue each."""
    client = stack.store.client()
    for number in range(num_runs):
        client.put_object(Bucket=BUCKET, Key=f"texts/{number}.txt", Body=text_of(number))
    runs, seconds = [], []
    with client_of(stack) as prefect:
        deployment = prefect.read_deployment_by_name("corpus/corpus").id
        for number in range(num_runs):
            source = {"kind": "text", "paths": [f"s3://{BUCKET}/texts/{number}.txt"]}
            recipe: dict[str, Any] = {
                "name": f"load-{number}",
                "corpus": {"sources": [source], "heldout_fraction": 0.2},
                "runtime": {"num_workers": 1},
            }
            started = time.perf_counter()
            run = prefect.create_flow_run_from_deployment(deployment, parameters={"recipe": recipe})
            seconds.append(time.perf_counter() - started)
            runs.append(run.id)
    return runs, seconds


@contextmanager
def measuring(stack: Stack) -> Iterator[Measurements]:
    """Measure every server's memory and the API's response time every five seconds."""
    measured, stopping = Measurements(), threading.Event()

    def measure() -> None:
        while not stopping.wait(_POLL_SECONDS):
            for server in (stack.postgres.server, stack.prefect, stack.mlflow):
                measured.update_peak(server.name, server.resident_bytes())
            for worker in stack.workers:
                # `wait_for_all` notices that a worker has ended.
                with suppress(psutil.NoSuchProcess):
                    resident = psutil.Process(worker.pid).memory_info().rss
                    measured.update_peak("Prefect worker", resident)
            started = time.perf_counter()
            try:
                with client_of(stack) as client:
                    client.read_work_pool(_POOL)
            except UNAVAILABLE:
                measured.unanswered += 1
            else:
                measured.api_seconds.append(time.perf_counter() - started)

    thread = threading.Thread(target=measure, name="monitor", daemon=True)
    thread.start()
    try:
        yield measured
    finally:
        stopping.set()
        thread.join()


def wait_for_all(stack: Stack, runs: list[UUID]) -> float:
    """The seconds until every run has ended. Raises RuntimeError if one does not end."""
    started = time.monotonic()
    left = set(runs)
    while left:
        if time.monotonic() - started > _MAX_SECONDS:
            raise RuntimeError(f"{len(left)} runs did not end: {sorted(map(str, left))}")
        time.sleep(_POLL_SECONDS)
        alive = [worker for worker in stack.workers if worker.is_running()]
        if not alive:
            raise RuntimeError(f"no worker is left, and {len(left)} runs have not ended")
        left -= finished(stack, left)
        sys.stderr.write(f"{len(runs) - len(left)} of {len(runs)} have ended\n")
    return time.monotonic() - started


def finished(stack: Stack, runs: set[UUID]) -> set[UUID]:
    """The runs that have ended; none if the server does not answer."""
    ids = FlowRunFilterId(any_=list(runs))
    try:
        with client_of(stack) as client:
            found = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=ids))
    except UNAVAILABLE:
        return set()
    return {run.id for run in found if run.state is not None and run.state.is_final()}


def run_history(stack: Stack, run: UUID) -> FinishedRun:
    """The history of a run from the server's tables: the client returns only the last state."""
    with client_of(stack) as client:
        found = client.read_flow_run(run)
    rows = stack.postgres.sql(
        "prefect",
        "select s.type, extract(epoch from s.timestamp) from flow_run_state s "
        f"where s.flow_run_id = '{run}' order by s.timestamp",
    )
    states = [line.split("\t") for line in rows.splitlines()]
    starts = [float(at) for kind, at in states if kind == "RUNNING"]
    due = found.expected_start_time or datetime.min
    return FinishedRun(
        state=(found.state.name if found.state else None) or "none",
        num_starts=len(starts),
        due=due.timestamp(),
        started=starts[0] if starts else float("nan"),
        ended=float(states[-1][1]),
    )


def max_at_once(runs: list[FinishedRun]) -> int:
    """The largest number of runs in the state Running at the same time."""
    return max(sum(each.started <= run.started < each.ended for each in runs) for run in runs)


def artifacts(stack: Stack) -> list[str]:
    """The fingerprints of the corpora in the store."""
    client, made = stack.store.client(), []
    for key in stack.store.keys_below("store/corpus/"):
        if key.endswith("/manifest.json"):
            manifest = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            made.append(manifest["fingerprint"])
    return made


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _row(what: str, values: list[float], unit: str = "s", scale: float = 1.0) -> str:
    if len(values) < 2:
        return f"| {what} | measured {len(values)} times | | | |"
    scaled = [value * scale for value in values]
    figures = (min(scaled), _percentile(scaled, 50), _percentile(scaled, 95), max(scaled))
    return f"| {what} | " + " | ".join(f"{figure:.1f} {unit}" for figure in figures) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=2, help="the pool's limit")
    options = parser.parse_args()
    if missing := missing_servers():
        sys.exit(missing)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers run in their own sessions
    with started_stack() as stack, raylets(2, **stack.store.environment()) as cluster:
        bertsmith(stack, "deploy")
        call(stack, "prefect", "work-pool", "update", _POOL,
             "--concurrency-limit", str(options.at_once))  # fmt: skip
        runs, queued = queue_runs(stack, options.runs)
        with measuring(stack) as measured:
            for number in range(_NUM_WORKERS):
                stack.start_worker(f"worker{number}", _POOL, **cluster.driver_env)
            seconds = wait_for_all(stack, runs)
        ended = [run_history(stack, run) for run in runs]
        made, left_over = artifacts(stack), stack.store.keys_below("store/corpus/.work-")
        servers = f"PostgreSQL {stack.postgres.version()}, {stack.store.version()}"
    completed = [each for each in ended if each.state == "Completed"]
    at_once = max_at_once(ended)
    not_once = [each for each in ended if each.num_starts != 1]
    counts = {
        "queued runs": str(options.runs),
        "completed": str(len(completed)),
        "lost (never started)": str(sum(each.num_starts == 0 for each in ended)),
        "started more than once": str(sum(each.num_starts > 1 for each in ended)),
        "different corpora in the store": str(len(set(made))),
        "unfinished attempts in the store": str(len(left_over)),
        "API calls without an answer": str(measured.unanswered),
        "most runs at once, of the pool's limit": f"{at_once} of {options.at_once}",
    }
    lines = [
        f"Prefect {version('prefect')} on {servers}; {_NUM_WORKERS} workers of one pool, a Ray "
        f"node of 2 CPUs; all on one machine (15-minute load average "
        f"{psutil.getloadavg()[2]:.0f}). All runs had ended after {seconds / 60:.1f} minutes.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in counts.items()),
        "",
        "| | min | median | 95% | max |",
        "|---|---|---|---|---|",
        _row("queueing a run", queued, "ms", 1000),
        _row("an answer of the API", measured.api_seconds, "ms", 1000),
        _row("a run waits in the queue", [each.started - each.due for each in ended]),
        _row("a run takes, once started", [each.ended - each.started for each in ended]),
        "",
        "| process | peak memory |",
        "|---|---|",
        *(f"| {name} | {size / 2**20:.0f} MiB |" for name, size in measured.peak_bytes.items()),
        "",
        "Memory is resident size; shared pages count for each process, PostgreSQL's shared buffers "
        "for each connection.",
    ]
    report("load", f"{options.runs} runs of a deployment, queued at once", lines, {})
    if len(completed) != options.runs or not_once or len(set(made)) != options.runs:
        sys.exit(1)
    if left_over or at_once > options.at_once:
        sys.exit(1)


if __name__ == "__main__":
    main()
