"""Two ranks train together: neither is left waiting for the other, whatever one of them meets."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from pyarrow.fs import LocalFileSystem

from bert_core.batch import Batch
from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel, TrainableModel
from bert_core.training.state import TRAINING_STATE_FILE, load_model
from pipelines.artifacts import Artifact, ArtifactStore
from pipelines.config.errors import UserError
from pipelines.config.runtime import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.examples.batches import ExampleReader, micro_batches
from pipelines.stages.pretraining.figures import HeldoutExamples, pretraining_figures
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.tracking.tracker import Tracker
from pipelines.training.checkpoint_files import AVERAGED_FOLDER, MODEL_FOLDER, CheckpointFolder
from pipelines.training.launch import Launch
from pipelines.training.metrics import Ending
from pipelines.training.placement import BatchSplit
from pipelines.training.ranks import Work, rank_and_world_size
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import run
from tests.pipelines.small_trainings import launched

pytestmark = pytest.mark.slow

NUM_STEPS = 8
CUT = BatchSplit(section="pretraining", global_batch_size=8, micro_batch_size=4)


def figures_of_ranks(values: dict[str, Any], rank: int, world_size: int) -> dict[str, float]:
    """Held-out figures of a model that nobody trained, and those of the baselines."""
    tokenizer = load_tokenizer(values["vocabulary"])
    torch.manual_seed(7)
    model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    return HeldoutExamples(values["examples"], tokenizer, rank, world_size).figures(model, 200)


def worker_that(
    meets: Callable[[int, int], None], evaluation_examples: int = 64, **settings: Any
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A training run of two ranks that calls `meets(rank, step)` where a reader would read."""

    def worker(values: dict[str, Any]) -> dict[str, Any]:
        rank, world_size = rank_and_world_size()
        assert world_size == 2
        reader = ExampleReader(values["examples"], "train")
        heldout = ExampleReader(values["examples"], "heldout")

        def batches_of(step: int) -> Iterator[tuple[int, Batch]]:
            meets(rank, step)
            return micro_batches(
                reader, seed=0, step=step, global_batch_size=8, micro_batch_size=4,
                rank=rank, world_size=world_size,
            )  # fmt: skip

        def evaluate(model: TrainableModel) -> dict[str, float]:
            return pretraining_figures(model, heldout, evaluation_examples, rank, world_size)

        work = Work(
            stage="ranks",
            section="pretraining",
            settings=TrainingSettings(log_every_steps=2, checkpoint_every_steps=4, **settings),
            num_steps=NUM_STEPS,
            evaluate_every_steps=4,
            build_model=lambda: PretrainingModel(encoder_config("tiny", reader.vocab_size)),
            micro_batches=batches_of,
            batches_of=batches_of,
            evaluate=evaluate,
            final_evaluation=lambda model: figures_of_ranks(values, rank, world_size),
        )
        return run(work, values)

    return worker


def train(
    worker: Callable[..., dict[str, Any]],
    examples: Artifact,
    vocabulary: Artifact,
    folder: Path,
    ranks: RuntimeSettings = RuntimeSettings(training_workers=2),  # noqa: B008  (frozen)
    finish: Callable[[Path, dict[str, Any]], Any] = lambda checkpoint, told: told,
    **more: Any,
) -> Any:
    """What `finish` makes of a training run on two ranks; fails where it takes much too long."""
    context = StageContext(store=ArtifactStore(folder), ranks=ranks)
    values = {"examples": examples, "vocabulary": vocabulary, "precision": "float32"}
    values |= {"run_id": None, "tracking_uri": None} | more
    job = Launch(
        worker=worker,
        values=values,
        name="ranks",
        checkpoints=CheckpointFolder(str(folder / "work"), LocalFileSystem()),
        cut=CUT,
    )
    return launched(job, context, finish)


def test_a_mistake_that_one_rank_meets_ends_the_training_with_its_sentence(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    def meets(rank: int, step: int) -> None:
        if (rank, step) == (1, 5):
            raise UserError("the shard must have its checksum, found another")

    with pytest.raises(UserError, match=r"^the shard must have its checksum, found another$"):
        train(worker_that(meets), small_examples, small_vocabulary, tmp_path)


def test_a_rank_without_a_batch_to_evaluate_waits_for_nobody_and_figures_are_those_of_one_rank(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    worker = worker_that(lambda rank, step: None, evaluation_examples=1)
    told = train(worker, small_examples, small_vocabulary, tmp_path)
    last = told["history"][-1]
    assert last["step"] == NUM_STEPS
    assert last["eval/mlm_loss"] > 0

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of the two ranks on two cores
    try:
        values = {"examples": small_examples, "vocabulary": small_vocabulary}
        assert told["final"] == figures_of_ranks(values, 0, 1)  # to the bit
    finally:
        torch.set_num_threads(num_threads)


def test_a_divided_state_with_an_average_is_saved_whole_and_the_average_is_published(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    def finish(checkpoint: Path, told: dict[str, Any]) -> tuple[Any, ...]:
        published = load_model(checkpoint / AVERAGED_FOLDER)
        state = torch.load(checkpoint / MODEL_FOLDER / TRAINING_STATE_FILE, weights_only=True)
        return told, published, load_model(checkpoint / MODEL_FOLDER), state

    told, published, last, state = train(
        worker_that(lambda rank, step: None, optimizer="muon", averaging_decay=0.5),
        small_examples, small_vocabulary, tmp_path,
        runtime=RuntimeSettings(training_workers=2, shard_optimizer_state=True), finish=finish,
    )  # fmt: skip
    assert (state["optimizer"], state["num_updates"]) == ("muon", NUM_STEPS)
    for name, average in state["average"].items():
        assert torch.equal(published.state_dict()[name], average)
        assert not torch.equal(last.state_dict()[name], average), name
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        heldout = ExampleReader(small_examples, "heldout")
        figures = pretraining_figures(published, heldout, 64, 0, 1)
    finally:
        torch.set_num_threads(num_threads)
    assert told["history"][-1]["eval/mlm_loss"] == figures["eval/mlm_loss"]  # to the bit


def test_layers_that_are_computed_again_end_with_the_same_bits(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    weights = []
    for name, num_layers in (("kept", 0), ("again", 100)):
        (tmp_path / name).mkdir()
        _, model = train(
            worker_that(lambda rank, step: None), small_examples, small_vocabulary, tmp_path / name,
            runtime=RuntimeSettings(training_workers=2, checkpointed_layers=num_layers),
            finish=lambda checkpoint, told: (told, load_model(checkpoint / MODEL_FOLDER)),
        )  # fmt: skip
        weights.append(model.state_dict())
    for name, tensor in weights[0].items():
        assert torch.equal(weights[1][name], tensor), name


def test_a_tracker_that_never_answers_holds_no_step_up_and_gets_every_point_later(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    tracker = Tracker(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", experiment="tests")
    run_id = tracker.create_run("training", "f", {}, {})
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
        told = train(
            worker_that(lambda rank, step: None), small_examples, small_vocabulary, tmp_path,
            run_id=run_id, tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}",
        )  # fmt: skip
    assert told["history"][-1]["step"] == NUM_STEPS
    client = tracker.client()
    assert client.get_metric_history(run_id, "train/loss") == []
    ending = Ending(
        uri=tracker.shown_uri, run_id=run_id, points=told["undelivered"], figures={},
        computed_on={}, end_time=1_700_000_000_000,
    )  # fmt: skip
    for _ in range(2):  # a second delivery changes nothing
        assert ending.deliver(tracker)
    steps = [point.step for point in client.get_metric_history(run_id, "train/loss")]
    assert steps == [2, 4, 6, 8]
    assert [point.step for point in client.get_metric_history(run_id, "eval/mlm_loss")] == [4, 8]


def test_a_cluster_that_stays_busy_is_named(
    small_examples: Artifact,
    small_vocabulary: Artifact,
    local_ray: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "0.5")
    monkeypatch.setattr("pipelines.training.launch._OUTAGE_SECONDS", 5.0)
    blocker = ray.remote(num_cpus=1)(lambda: time.sleep(120)).remote()
    try:
        with pytest.raises(
            UserError, match=r"other jobs use .* \(workers: 2, each with 1 CPU\) needs"
        ):
            train(worker_that(lambda rank, step: None), small_examples, small_vocabulary, tmp_path)
    finally:
        ray.cancel(blocker, force=True)
