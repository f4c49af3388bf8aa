"""Trainings of eight examples a step, whose numbers go wrong where a test says so."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from pyarrow.fs import FileSystem, LocalFileSystem

from bert_core.batch import Batch, PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from bert_core.training.state import load_model
from pipelines.settings import RuntimeSettings
from pipelines.stage import Progress, StageContext
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.pretraining.figures import pretraining_figures
from pipelines.store import Artifact, ArtifactStore
from pipelines.tracking.tracker import Tracker
from pipelines.train.checkpoint import MODEL_FOLDER, CheckpointFolder
from pipelines.train.launch import launched
from pipelines.train.ranks import rank_and_world_size
from pipelines.train.settings import BatchSplit, TrainingSettings
from pipelines.train.worker import Training, TrainingJob

CUT = BatchSplit(section="pretraining", global_batch_size=8, micro_batch_size=4)
CADENCE = {"log_every_steps": 1, "checkpoint_every_steps": 4}
_PATIENCE_SECONDS = 300


class Poisoned(PretrainingModel):
    """Its losses are multiplied at some steps, as an overflow or a bad example would do."""

    factors: Mapping[int, float] = {}
    step = 0

    def loss_sums(self, batch: PretrainingBatch, dropout: Any) -> Any:
        factor = self.factors.get(self.step, 1.0)
        sums = super().loss_sums(batch, dropout)
        return {name: each._replace(total=each.total * factor) for name, each in sums.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJob(TrainingJob):
    """Only rank 0 meets the poison; its worker dies once, where `dies_at` says."""

    name: ClassVar[str] = "small"

    stage: str = "pretraining"
    settings: TrainingSettings = field(default_factory=lambda: TrainingSettings(**CADENCE))
    precision: Any = "float32"
    cut: BatchSplit = CUT
    examples: Artifact
    num_steps: int = 10
    factors: Mapping[int, float] = field(default_factory=dict)
    dies_at: int | None = None
    marks: str = ""
    evaluation_examples: int = 64
    meets: Callable[[int, int], None] = lambda rank, step: None  # rank and step, at each step

    def on_rank(self) -> "SmallTraining":
        return SmallTraining(self)


class SmallTraining(Training):
    evaluate_every_steps = 4

    def __init__(self, job: SmallJob) -> None:
        self.job, self.settings, self.num_steps = job, job.settings, job.num_steps
        self.ranks = rank_and_world_size()
        self.reader = ExampleReader(job.examples, "train")
        self.heldout = ExampleReader(job.examples, "heldout")

    def build_model(self) -> Poisoned:
        self.model = Poisoned(encoder_config("tiny", self.reader.vocab_size))
        self.model.factors = self.job.factors if self.ranks[0] == 0 else {}
        return self.model

    def micro_batches(self, step: int) -> Iterator[tuple[int, Batch]]:
        rank, world_size = self.ranks
        self.model.step = step
        mark = Path(self.job.marks) / "died"
        if rank == 0 and step == self.job.dies_at and not mark.exists():
            mark.touch()
            time.sleep(3.0)  # what is on its way to the store arrives
            os.kill(os.getpid(), signal.SIGKILL)
        self.job.meets(rank, step)
        return micro_batches(
            self.reader, seed=0, step=step, global_batch_size=8, micro_batch_size=4,
            rank=rank, world_size=world_size,
        )  # fmt: skip

    def evaluate(self, model: Any) -> dict[str, float]:
        return pretraining_figures(model, self.heldout, self.job.evaluation_examples, *self.ranks)

    def final_evaluation(self, model: Any) -> dict[str, Any]:
        return {}


def train_small(
    job: TrainingJob,
    folder: Path,
    *,
    ranks: int = 1,
    filesystem: FileSystem | None = None,
    notes: list[str] | None = None,
    tracker: Tracker | None = None,
    run_id: str | None = None,
    read: Callable[[Path], Any] = lambda checkpoint: load_model(
        checkpoint / MODEL_FOLDER
    ).state_dict(),
    **runtime: Any,
) -> tuple[dict[str, Any], Any]:
    """What a training run reported, and what `read` made of its last checkpoint: its weights.

    On a thread that a hanging training cannot hold for ever.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def observe(progress: Progress) -> None:
        if progress.note and notes is not None:
            notes.append(progress.note)

    context = StageContext(
        store=ArtifactStore(folder),
        runtime=RuntimeSettings(training_workers=ranks, **runtime),
        observe=observe,
        tracker=tracker,
    )
    checkpoints = CheckpointFolder(str(folder / "work"), filesystem or LocalFileSystem())
    outcome: list[Any] = []

    def call() -> None:
        try:
            with launched(job, checkpoints, context, run_id) as (checkpoint, result):
                outcome.append((result, read(checkpoint)))
        except Exception as error:  # noqa: BLE001  (raised below, on the test's own thread)
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    assert outcome, f"the training run has not ended within {_PATIENCE_SECONDS} s"
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    result: dict[str, Any] = outcome[0][0]
    weights: dict[str, torch.Tensor] = outcome[0][1]
    return result, weights
