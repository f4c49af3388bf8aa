"""A pretraining whose workers note what they see in each step: when, who, and which micro-batches.

    python benchmarks/recorded_training.py '{"data": "...", "store": "...", ...}'

The training run is the product's own (`build_encoder`); only the iterator that hands micro-batches
to the loop is wrapped. A worker appends a line to a file of its own as it begins a step, so that
what a killed worker saw is known too.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import ROOT
from bert_core.batch import Batch
from pipelines.artifacts import ArtifactStore
from pipelines.stage import NumWorkers, Ranks, StageContext
from pipelines.stages.pretraining import stage
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.training.ranks import Work

_HURRY_FILE = "hurry"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training run to start in a process of its own; starting it again goes on with it."""

    data: str  # the store of the two artifacts that it reads
    examples: str
    vocabulary: str
    store: str
    record: str  # the folder of the workers' notes
    workers: NumWorkers = 1
    threads: int = 1  # of each worker
    settings: dict[str, Any] = field(default_factory=dict)
    wait_for_nodes_seconds: int = 0  # that an autoscaler adds
    slow_seconds: float = 0.0  # added to each step until `hurry`, so that one can be met

    def hurry(self) -> None:
        """From now on steps take their own time."""
        (Path(self.record) / _HURRY_FILE).touch()

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """The driver's process; what it prints last is the `Outcome`."""
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(self))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training run ended with."""

    history: list[dict[str, float]]
    weights: str  # their file's SHA-256
    resumed_from: list[int]

    @classmethod
    def of(cls, driver: "subprocess.Popen[str]", timeout: float = 600) -> "Outcome":
        """Wait for the driver's end. Raises RuntimeError with what it said where it failed."""
        said, complaints = driver.communicate(timeout=timeout)
        if driver.returncode:
            raise RuntimeError(
                f"the training run ended with {driver.returncode}: {complaints[-5000:]}"
            )
        return cls(**json.loads(said.splitlines()[-1]))

    def losses(self) -> dict[int, float]:
        """The training loss after each logged step."""
        return {int(p["step"]): p["train/loss"] for p in self.history if "train/loss" in p}


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A worker begins a step."""

    at: float  # seconds since the epoch
    ready: float  # when its process began the training function
    process: int
    rank: int
    num_ranks: int
    step: int  # counted from 0
    batches: dict[str, str]  # number of the micro-batch in the step: digest of all its tensors


def beginnings(folder: Path) -> list[Beginning]:
    """What all workers noted so far, in the order of time."""
    found = []
    for path in folder.glob("*.jsonl"):
        *whole, _ = path.read_text().split("\n")  # a killed worker may leave half a line
        found += [Beginning(**json.loads(line)) for line in whole]
    return sorted(found, key=lambda beginning: beginning.at)


def awaited(
    driver: "subprocess.Popen[str]",
    folder: Path,
    wanted: Callable[[Beginning], bool],
    patience: float = 300.0,
) -> Beginning:
    """The first beginning that is wanted, once there is one.

    Raises RuntimeError where the training run ends before it, or nothing comes for so many seconds.
    """
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        has_ended = driver.poll() is not None  # asked first: what it noted last counts
        for beginning in beginnings(folder):
            if wanted(beginning):
                return beginning
        if has_ended:
            Outcome.of(driver)  # raises what it said
            raise RuntimeError("the training run ended before it met what it was to meet")
        time.sleep(0.05)
    driver.kill()
    raise RuntimeError(f"waited {patience:.0f} s in vain; it said: {driver.communicate()[1]}")


def batches_by_step(noted: list[Beginning]) -> dict[int, dict[str, set[str]]]:
    """All digests that any worker ever saw of each micro-batch of each step."""
    seen: dict[int, dict[str, set[str]]] = {}
    for beginning in noted:
        of_step = seen.setdefault(beginning.step, {})
        for number, digest in beginning.batches.items():
            of_step.setdefault(number, set()).add(digest)
    return seen


def digest(batch: Batch) -> str:
    """SHA-256 over all tensors: tokens, segments, positions, masks and labels."""
    found = hashlib.sha256()

    def add(tensor: Tensor) -> Tensor:
        found.update(tensor.numpy().tobytes())
        return tensor

    batch.moved(add)
    return found.hexdigest()


def noting_worker(folder: str, slow_seconds: float, values: dict[str, Any]) -> dict[str, Any]:
    """The stage's own worker, with its micro-batches noted on their way into the loop."""
    ready = time.time()
    context = ray.train.get_context()
    run = stage.run
    with (Path(folder) / f"{os.getpid()}-{ready:.6f}.jsonl").open("a") as notes:

        def noting_run(work: Work, values: dict[str, Any]) -> dict[str, Any]:
            def micro_batches(step: int) -> Iterator[tuple[int, Batch]]:
                batches = list(work.micro_batches(step))
                beginning = Beginning(
                    at=time.time(),
                    ready=ready,
                    process=os.getpid(),
                    rank=context.get_world_rank(),
                    num_ranks=context.get_world_size(),
                    step=step,
                    batches={str(number): digest(batch) for number, batch in batches},
                )
                notes.write(json.dumps(asdict(beginning)) + "\n")
                notes.flush()
                if not (Path(folder) / _HURRY_FILE).exists():
                    time.sleep(slow_seconds)
                return iter(batches)

            return run(replace(work, micro_batches=micro_batches), values)

        stage.run = noting_run
        return stage._worker(values)  # the worker's process has the original


def main() -> None:
    training = Training(**json.loads(sys.argv[1]))
    Path(training.record).mkdir(parents=True, exist_ok=True)
    stage._worker = partial(noting_worker, training.record, training.slow_seconds)
    workers = training.workers
    inputs = ArtifactStore(training.data)
    encoder = stage.build_encoder(
        PretrainingSettings.model_validate(training.settings),
        inputs.find("examples", training.examples),
        inputs.find("vocabulary", training.vocabulary),
        StageContext(
            store=ArtifactStore(training.store),
            ranks=Ranks(
                workers=tuple(workers) if isinstance(workers, list) else workers,
                cpus_per_worker=training.threads,
                device="cpu",
                wait_for_nodes_seconds=training.wait_for_nodes_seconds,
                max_failures=30,
            ),
        ),
    )
    outcome = Outcome(
        history=json.loads(encoder.local("history.json").read_text()),
        weights=encoder.manifest.files["model.safetensors"].sha256,
        resumed_from=encoder.statistics["resumed_from"],
    )
    print(json.dumps(asdict(outcome)))


if __name__ == "__main__":
    main()
