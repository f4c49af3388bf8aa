"""Trainings of eight examples a step, whose numbers go wrong where a test says so."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pyarrow.fs import FileSystem, LocalFileSystem

from bert_core.batch import Batch, PretrainingBatch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel, TrainableModel
from bert_core.training.state import load_model
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.config.runtime import RuntimeSettings
from pipelines.stage import Progress, StageContext
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.pretraining.figures import pretraining_figures
from pipelines.training.checkpoint_files import MODEL_FOLDER, CheckpointFolder
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import BatchSplit
from pipelines.training.ranks import Work, rank_and_world_size
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import run

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


def worker_that_meets(
    factors: Mapping[int, float],
    *,
    num_steps: int,
    dies_at: int | None = None,
    **settings: Any,
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Only rank 0 meets the poison; the worker dies once, where `dies_at` says."""

    def worker(values: dict[str, Any]) -> dict[str, Any]:
        rank, world_size = rank_and_world_size()
        reader = ExampleReader(values["examples"], "train")
        heldout = ExampleReader(values["examples"], "heldout")
        models: list[Poisoned] = []

        def build_model() -> Poisoned:
            model = Poisoned(encoder_config("tiny", reader.vocab_size))
            model.factors = factors if rank == 0 else {}
            models.append(model)
            return model

        def batches_of(step: int) -> Iterator[tuple[int, Batch]]:
            models[0].step = step
            mark = Path(values["marks"]) / "died"
            if rank == 0 and step == dies_at and not mark.exists():
                mark.touch()
                time.sleep(3.0)  # what is on its way to the store arrives
                os.kill(os.getpid(), signal.SIGKILL)
            return micro_batches(
                reader, seed=0, step=step, global_batch_size=8, micro_batch_size=4,
                rank=rank, world_size=world_size,
            )  # fmt: skip

        def evaluate(model: TrainableModel) -> dict[str, float]:
            return pretraining_figures(model, heldout, 64, rank, world_size)

        work = Work(
            stage="pretraining",
            section="pretraining",
            settings=TrainingSettings(**{**CADENCE, **settings}),
            num_steps=num_steps,
            evaluate_every_steps=4,
            build_model=build_model,
            micro_batches=batches_of,
            batches_of=batches_of,
            evaluate=evaluate,
            final_evaluation=lambda model: {},
        )
        return run(work, values)

    return worker


def train_small(
    worker: Callable[..., dict[str, Any]],
    examples: Artifact,
    folder: Path,
    *,
    ranks: int = 1,
    work: str | None = None,
    filesystem: FileSystem | None = None,
    notes: list[str] | None = None,
    tracking_uri: str | None = None,
    run_id: str | None = None,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What a training run reported, and its weights; fails where it takes much too long."""
    folder.mkdir(parents=True, exist_ok=True)

    def observe(progress: Progress) -> None:
        if progress.note and notes is not None:
            notes.append(progress.note)

    context = StageContext(
        store=ArtifactStore(folder),
        runtime=RuntimeSettings(training_workers=ranks),
        observe=observe,
    )
    job = Launch(
        worker=worker,
        values={
            "examples": examples, "precision": "float32", "run_id": run_id,
            "tracking_uri": tracking_uri, "marks": str(folder),
        },
        name="small",
        checkpoints=CheckpointFolder(work or str(folder / "work"), filesystem or LocalFileSystem()),
        cut=CUT,
    )  # fmt: skip

    def finish(checkpoint: Path, told: dict[str, Any]) -> Any:
        return told, load_model(checkpoint / MODEL_FOLDER).state_dict()

    told, weights = launched(job, context, finish)
    return told, weights


def launched(job: Launch, context: StageContext, finish: Callable[..., Any]) -> Any:
    """What `launch` returns, on a thread that a hanging training cannot hold for ever."""
    outcome: list[Any] = []

    def call() -> None:
        try:
            outcome.append(launch(job, context, finish))
        except Exception as error:  # noqa: BLE001  (raised below, on the test's own thread)
            outcome.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    assert outcome, f"the training run has not ended within {_PATIENCE_SECONDS} s"
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]
