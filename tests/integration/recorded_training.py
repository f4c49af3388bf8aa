"""Pretraining whose workers record each step: when, which worker, and which micro-batches.

    python tests/integration/recorded_training.py '{"data": "...", "store": "...", ...}'

The training run is the normal one (`build_encoder`); only the iterator of micro-batches is wrapped.
A worker appends a line to its own file when it starts a step, so that the steps of a killed worker
are known too.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from bert_core.batch import Batch
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.pretraining import stage
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import Pretraining, PretrainingJob
from pipelines.store import ArtifactStore
from tests.command_line import last_object

ROOT = Path(__file__).parents[2]
_HURRY_FILE = "hurry"
# Everything that could differ after resuming is on: masks redrawn in each epoch (the default),
# dropout (the default), next sentence prediction, ragged batches, a logged loss for each step.
SETTINGS: dict[str, Any] = {
    "size": "tiny",
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "log_every_steps": 1,
    "evaluate_every_steps": 100,
    "evaluation_examples": 64,
    "final_evaluation_examples": 64,
    "precision": "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training run to start in a fresh process; starting it again resumes it."""

    data: str  # the store of the two artifacts that it reads
    examples: str
    vocabulary: str
    store: str
    record: str  # the folder of the workers' records
    workers: int | tuple[int, int] | Literal["auto"] = 1
    threads: int = 1  # of each worker
    settings: dict[str, Any] = field(default_factory=dict)
    wait_for_nodes_seconds: int = 0  # that an autoscaler adds
    slow_seconds: float = 0.0  # added to each step until `hurry`, so that a kill can hit one

    def hurry(self) -> None:
        """Stop slowing down the steps."""
        (Path(self.record) / _HURRY_FILE).touch()

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start the driver; the last line that it prints is the `Outcome`."""
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(self))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a training run."""

    history: list[dict[str, float]]
    weights: str  # SHA-256 of their file
    resumed_from: list[int]

    @classmethod
    def of(cls, driver: "subprocess.Popen[str]", timeout: float = 600) -> "Outcome":
        """Wait until the driver ends. Raises RuntimeError with its errors if it failed."""
        output, errors = driver.communicate(timeout=timeout)
        if driver.returncode:
            raise RuntimeError(f"the training run ended with {driver.returncode}: {errors[-5000:]}")
        return cls(**last_object(output))

    def losses(self) -> dict[int, float]:
        """The training loss after each logged step."""
        return {int(p["step"]): p["train/loss"] for p in self.history if "train/loss" in p}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """The start of a step on a worker."""

    at: float  # seconds since the epoch
    process: int
    rank: int
    num_ranks: int
    step: int  # counted from 0
    batches: dict[str, str]  # number of the micro-batch in the step: digest of all its tensors


def step_starts(folder: Path) -> list[StepStart]:
    """What all workers have recorded so far, in order of time."""
    found = []
    for path in folder.glob("*.jsonl"):
        *whole, _ = path.read_text().split("\n")  # a killed worker may leave half a line
        found += [StepStart(**json.loads(line)) for line in whole]
    return sorted(found, key=lambda start: start.at)


def wait_for_step(
    driver: "subprocess.Popen[str]",
    folder: Path,
    wanted: Callable[[StepStart], bool],
    timeout: float = 300.0,
) -> StepStart:
    """Wait for the first step start that is `wanted`.

    Raises RuntimeError if the training run ends before it, or after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        has_ended = driver.poll() is not None  # checked first: its last records count
        for start in step_starts(folder):
            if wanted(start):
                return start
        if has_ended:
            Outcome.of(driver)  # raises if it failed
            raise RuntimeError("the training run ended before the step that was waited for")
        time.sleep(0.05)
    driver.kill()
    raise RuntimeError(f"no such step in {timeout:.0f} s; errors: {driver.communicate()[1]}")


def batches_by_step(starts: list[StepStart]) -> dict[int, dict[str, set[str]]]:
    """All digests of each micro-batch of each step, from all workers."""
    seen: dict[int, dict[str, set[str]]] = {}
    for start in starts:
        of_step = seen.setdefault(start.step, {})
        for number, digest in start.batches.items():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingJob(PretrainingJob):
    """The stage's own job, with its micro-batches recorded on their way into the loop."""

    folder: str
    slow_seconds: float

    def on_rank(self) -> "RecordingPretraining":
        return RecordingPretraining(self)


class RecordingPretraining(Pretraining):
    def __init__(self, job: RecordingJob) -> None:
        super().__init__(job)
        self._folder, self._slow_seconds = Path(job.folder), job.slow_seconds
        self._notes = self._folder / f"{os.getpid()}-{time.time():.6f}.jsonl"

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        batches = list(super().micro_batches(step))
        rank, num_ranks = self._ranks
        start = StepStart(
            at=time.time(),
            process=os.getpid(),
            rank=rank,
            num_ranks=num_ranks,
            step=step,
            batches={str(number): digest(batch) for number, batch in batches},
        )
        with self._notes.open("a") as notes:
            notes.write(json.dumps(asdict(start)) + "\n")
        if not (self._folder / _HURRY_FILE).exists():
            time.sleep(self._slow_seconds)
        return iter(batches)


def main() -> None:
    training = TrainingRun(**json.loads(sys.argv[1]))
    Path(training.record).mkdir(parents=True, exist_ok=True)
    stage.PretrainingJob = partial(
        RecordingJob, folder=training.record, slow_seconds=training.slow_seconds
    )
    workers = training.workers
    inputs = ArtifactStore(training.data)
    encoder = stage.build_encoder(
        PretrainingSettings.model_validate(training.settings),
        inputs.find("examples", training.examples),
        inputs.find("vocabulary", training.vocabulary),
        StageContext(
            store=ArtifactStore(training.store),
            runtime=RuntimeSettings(
                training_workers=tuple(workers) if isinstance(workers, list) else workers,
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
    sys.stdout.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()
