"""Fifty runs of a deployment queued at once: none is lost, none is run twice.

    python benchmarks/load.py                  # some ten to twenty minutes
    python benchmarks/load.py --runs 10 --at-once 2

The corpus flow over a text of its own for each run, on a platform of real servers: Prefect on
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
from benchmarks.stack.runs import AWAY, bertsmith, call, client_of
from benchmarks.stack.whole import Stack, missing_servers, started_stack

_POOL = "bertsmith-data"
_NUM_WORKERS = 2
_POLL_SECONDS = 5.0
_MOST_SECONDS = 7200.0


@dataclass
class Watched:
    """What was seen while the runs went on."""

    peak_bytes: dict[str, int] = field(default_factory=Counter)
    api_seconds: list[float] = field(default_factory=list)
    unanswered: int = 0  # of the looks at the API

    def saw(self, name: str, size: int) -> None:
        """A process, or a family of them, took so many bytes."""
        self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), size)


@dataclass(frozen=True)
class Ended:
    """One run, as Prefect's history tells it."""

    state: str
    num_begun: int  # times that it entered the state Running
    due: float  # seconds of the clock, as are the others
    begun: float  # not a number where it never did
    ended: float


def text_of(number: int) -> bytes:
    """A small text that no other run reads."""
    sentences = [
        f"Sentence {line} of the text number {number} says that {line * number % 97} is a number."
        for line in range(200)
    ]
    return "\n\n".join(" ".join(sentences[at : at + 4]) for at in range(0, 200, 4)).encode()


def queue_runs(stack: Stack, num_runs: int) -> tuple[list[UUID], list[float]]:
    """The runs, due at once, and how long the server took to take each of them."""
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
def watching(stack: Stack) -> Iterator[Watched]:
    """Memory of every server, and how long the API takes to answer, every five seconds."""
    watched, stopping = Watched(), threading.Event()

    def look() -> None:
        while not stopping.wait(_POLL_SECONDS):
            for server in (stack.postgres.server, stack.prefect, stack.mlflow):
                watched.saw(server.name, server.resident_bytes())
            workers = [psutil.Process(worker.pid) for worker in stack.workers]
            with suppress(psutil.NoSuchProcess):  # the queue shows a worker that has ended
                for worker in workers:
                    watched.saw("Prefect worker", worker.memory_info().rss)
            started = time.perf_counter()
            try:
                with client_of(stack) as client:
                    client.read_work_pool(_POOL)
            except AWAY:
                watched.unanswered += 1
            else:
                watched.api_seconds.append(time.perf_counter() - started)

    thread = threading.Thread(target=look, name="watching", daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        stopping.set()
        thread.join()


def await_all(stack: Stack, runs: list[UUID]) -> float:
    """How long it took until every run had ended. Raises RuntimeError where one does not."""
    started = time.monotonic()
    left = set(runs)
    while left:
        if time.monotonic() - started > _MOST_SECONDS:
            raise RuntimeError(f"{len(left)} runs did not end: {sorted(map(str, left))}")
        time.sleep(_POLL_SECONDS)
        alive = [worker for worker in stack.workers if worker.is_running()]
        if not alive:
            raise RuntimeError(f"no worker is left, and {len(left)} runs have not ended")
        left -= over(stack, left)
        sys.stderr.write(f"{len(runs) - len(left)} of {len(runs)} have ended\n")
    return time.monotonic() - started


def over(stack: Stack, runs: set[UUID]) -> set[UUID]:
    """Those that have ended; none where the server does not answer just now."""
    ids = FlowRunFilterId(any_=list(runs))
    try:
        with client_of(stack) as client:
            found = client.read_flow_runs(flow_run_filter=FlowRunFilter(id=ids))
    except AWAY:
        return set()
    return {run.id for run in found if run.state is not None and run.state.is_final()}


def what_became(stack: Stack, run: UUID) -> Ended:
    """What the server's own tables say: its client tells of the last state alone."""
    with client_of(stack) as client:
        found = client.read_flow_run(run)
    rows = stack.postgres.sql(
        "prefect",
        "select s.type, extract(epoch from s.timestamp) from flow_run_state s "
        f"where s.flow_run_id = '{run}' order by s.timestamp",
    )
    states = [line.split("\t") for line in rows.splitlines()]
    begun = [float(at) for kind, at in states if kind == "RUNNING"]
    due = found.expected_start_time or datetime.min
    return Ended(
        state=(found.state.name if found.state else None) or "none",
        num_begun=len(begun),
        due=due.timestamp(),
        begun=begun[0] if begun else float("nan"),
        ended=float(states[-1][1]),
    )


def most_at_once(runs: list[Ended]) -> int:
    """How many were in the state Running at the same time, at most."""
    return max(sum(each.begun <= run.begun < each.ended for each in runs) for run in runs)


def artifacts(stack: Stack) -> list[str]:
    """The text that each corpus in the store was made from, by the run that made it."""
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
        return f"| {what} | seen {len(values)} times | | | |"
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers have sessions of their own
    with started_stack() as stack, raylets(2, **stack.store.environment()) as cluster:
        bertsmith(stack, "deploy")
        call(stack, "prefect", "work-pool", "update", _POOL,
             "--concurrency-limit", str(options.at_once))  # fmt: skip
        runs, queued = queue_runs(stack, options.runs)
        with watching(stack) as watched:
            for number in range(_NUM_WORKERS):
                stack.start_worker(f"worker{number}", _POOL, **cluster.of_drivers)
            seconds = await_all(stack, runs)
        ended = [what_became(stack, run) for run in runs]
        made, left_over = artifacts(stack), stack.store.keys_below("store/corpus/.work-")
        servers = f"PostgreSQL {stack.postgres.version()}, {stack.store.version()}"
    completed = [each for each in ended if each.state == "Completed"]
    at_once = most_at_once(ended)
    twice = [each for each in ended if each.num_begun != 1]
    is_whole = {
        "runs that were queued": str(options.runs),
        "that ended as completed": str(len(completed)),
        "lost (neither ended nor begun)": str(sum(each.num_begun == 0 for each in ended)),
        "begun more than once": str(sum(each.num_begun > 1 for each in ended)),
        "corpora in the store, each from another text": str(len(set(made))),
        "attempts left beside them": str(len(left_over)),
        "looks at the API that it did not answer": str(watched.unanswered),
        "most runs at once, of the pool's limit": f"{at_once} of {options.at_once}",
    }
    lines = [
        f"Prefect {version('prefect')} on {servers}; {_NUM_WORKERS} workers of one pool, a Ray "
        f"node of 2 CPUs; all of it on one machine, which other work kept busy besides (load "
        f"average {psutil.getloadavg()[2]:.0f} over the last quarter of an hour). "
        f"All had ended after {seconds / 60:.1f} minutes.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in is_whole.items()),
        "",
        "| | least | median | 95% | most |",
        "|---|---|---|---|---|",
        _row("taking a run into the queue", queued, "ms", 1000),
        _row("an answer of the API meanwhile", watched.api_seconds, "ms", 1000),
        _row("a run waits in the queue", [each.begun - each.due for each in ended]),
        _row("a run takes, once begun", [each.ended - each.begun for each in ended]),
        "",
        "| process | most memory |",
        "|---|---|",
        *(f"| {name} | {size / 2**20:.0f} MiB |" for name, size in watched.peak_bytes.items()),
        "",
        "Memory is resident size with shared pages counted for each process, PostgreSQL's shared "
        "buffers with every connection.",
    ]
    report("load", f"{options.runs} runs of a deployment, queued at once", lines, {})
    if len(completed) != options.runs or twice or len(set(made)) != options.runs:
        sys.exit(1)
    if left_over or at_once > options.at_once:
        sys.exit(1)


if __name__ == "__main__":
    main()
