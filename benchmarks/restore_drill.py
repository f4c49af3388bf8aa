"""A restore drill: both databases and the store are backed up, lost and restored, with times.

    python benchmarks/restore_drill.py                    # a store of 500 MB
    python benchmarks/restore_drill.py --megabytes 2000

Real servers (benchmarks/stack), PostgreSQL's own pg_dump and pg_restore, and rclone for the store.
Afterwards every artifact is read and verified, and the servers must have the same contents.
"""

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from benchmarks.alternating import report
from benchmarks.stack.object_store import BUCKET
from benchmarks.stack.runs import bertsmith, client_of, trigger
from benchmarks.stack.whole import STORE, Stack, missing_servers, started_stack
from flows.services.health import answers
from flows.services.runtime_block import read_runtime
from pipelines.artifacts import ArtifactStore, Built, Draft

_NUM_ARTIFACTS = 5
_NUM_FILES = 10
_NUM_RUNS = 20
_DATABASES = ("prefect", "mlflow")


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Make this process a client of the platform."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def fill(stack: Stack, megabytes: int) -> None:
    """Make artifacts in the store, runs and a model in MLflow, deployments and runs in Prefect."""
    store = ArtifactStore(STORE)
    size = megabytes * 10**6 // (_NUM_ARTIFACTS * _NUM_FILES)
    for number in range(_NUM_ARTIFACTS):
        generator = np.random.default_rng(number)

        def build(draft: Draft, generator: np.random.Generator = generator) -> Built:
            names = [f"part-{part}" for part in range(_NUM_FILES)]
            for name in names:
                with draft.file(name) as file:
                    file.path.write_bytes(generator.bytes(size))
            return Built(names, {})

        store.get_or_build("corpus", version=1, settings={"number": number}, inputs={}, build=build)
    from mlflow import MlflowClient

    mlflow = MlflowClient(stack.mlflow_url)
    experiment = mlflow.create_experiment("drill")
    for number in range(_NUM_RUNS):
        run = mlflow.create_run(experiment)
        mlflow.log_metric(run.info.run_id, "loss", 1 / (1 + number))
        mlflow.log_text(run.info.run_id, f"of run {number}", "note.txt")
        mlflow.set_terminated(run.info.run_id)
    mlflow.create_registered_model("drill")
    source = f"{run.info.artifact_uri}/note.txt"
    made = mlflow.create_model_version("drill", source, run.info.run_id, tags={"number": "1"})
    mlflow.set_registered_model_alias("drill", "champion", made.version)
    bertsmith(stack, "deploy")
    for number in range(_NUM_RUNS):
        trigger(stack, "corpus/corpus", {"recipe": {"name": f"drill-{number}"}})


def contents(stack: Stack) -> dict[str, Any]:
    """The contents of the platform; each file of the store is read and verified."""
    from mlflow import MlflowClient

    store = ArtifactStore(STORE)
    digests = {}
    for key in stack.store.keys_below("store/"):
        if key.endswith("/manifest.json"):
            _, kind, fingerprint, _ = key.split("/")
            artifact = store.find(kind, fingerprint)
            assert artifact is not None
            for name in artifact.names():
                content = artifact.local(name).read_bytes()  # checked by size and SHA-256
                digests[f"{fingerprint}/{name}"] = hashlib.sha256(content).hexdigest()
    mlflow = MlflowClient(stack.mlflow_url)
    (experiment,) = (each for each in mlflow.search_experiments() if each.name == "drill")
    runs = mlflow.search_runs([experiment.experiment_id])
    with client_of(stack) as client:
        flow_runs = [run.name for run in client.read_flow_runs(limit=200)]
        deployments = [each.name for each in client.read_deployments()]
        pools = [each.name for each in client.read_work_pools()]
        block = read_runtime()
        assert block is not None
    return {
        "files of the store": digests,
        "runs in MLflow": sorted((run.info.run_id, run.data.metrics["loss"]) for run in runs),
        "files of these runs, with digests": stack.store.digests_below("mlflow/"),
        "model versions, with aliases": sorted(
            (each.name, each.version, each.source, tuple(each.aliases), tuple(each.tags.items()))
            for each in mlflow.search_model_versions()
        ),
        "runs in Prefect": sorted(flow_runs),
        "deployments": sorted(deployments),
        "work pools": sorted(pools),
        "values of the block, with secrets": block.variables(),
    }


class Drill:
    """The steps of the drill, timed."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self.seconds: dict[str, float] = {}

    def step(self, name: str, do: Callable[[], object]) -> None:
        """Call `do` and record its time."""
        started = time.perf_counter()
        do()
        self.seconds[name] = time.perf_counter() - started
        sys.stderr.write(f"{name}: {self.seconds[name]:.1f} s\n")

    def dump(self) -> None:
        """Dump both databases, each at one point in time, while their servers run."""
        for database in _DATABASES:
            target = str(self._folder / f"{database}.dump")
            self._stack.postgres.client("pg_dump", "--format=custom", f"--file={target}", database)

    def copy(self) -> None:
        """Copy the store after the databases, so that it has everything they refer to."""
        deleted = f"--backup-dir={self._folder / 'deleted'}"  # a mirror of a loss is no backup
        self._rclone("sync", deleted, f"platform:{BUCKET}", str(self._folder / "store"))

    def lose(self) -> None:
        """Delete both databases, the Prefect server's folder and every object."""
        for server in (self._stack.prefect, self._stack.mlflow):
            server.stop()
        shutil.rmtree(self._stack.folder / "prefect-server")
        for database in _DATABASES:
            self._stack.postgres.client("dropdb", "--force", database)
        self._rclone("delete", f"platform:{BUCKET}")
        assert not self._stack.store.keys_below("")

    def restore_store(self) -> None:
        """Restore the objects first: nothing may refer to what is missing."""
        self._rclone("copy", str(self._folder / "store"), f"platform:{BUCKET}")

    def restore_databases(self) -> None:
        """Restore both databases into new, empty ones."""
        for database in _DATABASES:
            self._stack.postgres.create(database)
            source = str(self._folder / f"{database}.dump")
            into = f"--dbname={database}"
            self._stack.postgres.client("pg_restore", "--no-owner", "--exit-on-error", into, source)

    def start_servers(self) -> None:
        """Start both servers and wait until they answer."""
        stack = self._stack
        stack.prefect.start(lambda: answers(f"{stack.prefect_url}/api/health"))
        stack.mlflow.start(lambda: answers(f"{stack.mlflow_url}/health"))

    def _rclone(self, *arguments: str) -> None:
        store = self._stack.store
        remote = {
            "TYPE": "s3",
            "PROVIDER": "Ceph" if store.is_ceph else "Other",
            "ENDPOINT": store.url,
            "ACCESS_KEY_ID": store.access_key,
            "SECRET_ACCESS_KEY": store.secret_key,
            "REGION": "us-east-1",
        }
        named = {f"RCLONE_CONFIG_PLATFORM_{name}": value for name, value in remote.items()}
        command = ["rclone", "--config=/dev/null", "--checksum", "--transfers=4", *arguments]
        # The variables of Amazon's clients are for other servers than this one.
        others = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        subprocess.run(command, env={**others, **named}, check=True)


def _missing_rclone() -> str:
    return "" if shutil.which("rclone") else "rclone must be installed (Debian: rclone)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=500)
    megabytes = parser.parse_args().megabytes
    if missing := missing_servers() or _missing_rclone():
        sys.exit(missing)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers run in their own sessions
    with started_stack() as stack, tempfile.TemporaryDirectory() as name:
        (Path(name) / "home").mkdir()
        with environment(stack.clients(Path(name))):
            drill = Drill(stack, Path(name))
            fill(stack, megabytes)
            before = contents(stack)
            drill.step("both databases dumped (pg_dump)", drill.dump)
            drill.step("the store copied (rclone sync)", drill.copy)
            drill.lose()
            shutil.rmtree(Path(name) / "cache")  # nothing may be read from this machine's cache
            drill.step("the store restored (rclone copy)", drill.restore_store)
            drill.step("both databases restored (pg_restore)", drill.restore_databases)
            drill.step("both servers started, until they answer", drill.start_servers)
            after: dict[str, Any] = {}
            drill.step("every artifact read and verified", lambda: after.update(contents(stack)))
            sizes = {each.name: each.stat().st_size / 2**20 for each in Path(name).glob("*.dump")}
        servers = f"PostgreSQL {stack.postgres.version()}, {stack.store.version()}"
    lines = [
        f"{servers}, Prefect {version('prefect')}, MLflow {version('mlflow')}; a machine of "
        f"{os.cpu_count()} cores (15-minute load average "
        f"{os.getloadavg()[2]:.0f}). Dumps: "
        + ", ".join(f"{name} {size:.1f} MiB" for name, size in sorted(sizes.items())) + ".",
        "",
        "| step | seconds |",
        "|---|---|",
        *(f"| {step} | {seconds:.1f} |" for step, seconds in drill.seconds.items()),
        "",
        "| contents | before | after | same |",
        "|---|---|---|---|",
        *(
            f"| {what} | {len(before[what])} | {len(after[what])} "
            f"| {'yes' if before[what] == after[what] else 'NO'} |"
            for what in before
        ),
        "",
    ]  # fmt: skip
    report("restore", f"Databases and a store of {megabytes} MB, lost and restored", lines, {})
    if before != after:
        sys.exit(1)


if __name__ == "__main__":
    main()
