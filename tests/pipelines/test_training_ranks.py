"""Training runs on two ranks: what one meets ends all, and figures are those of one rank."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray
import torch

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel
from pipelines.errors import UserError
from pipelines.stages.pretraining.figures import HeldoutExamples
from pipelines.stages.vocabulary.stage import load_tokenizer
from pipelines.store import Artifact
from pipelines.train.settings import TrainingSettings
from tests.pipelines.small_trainings import SmallJob, SmallTraining, train_small

pytestmark = pytest.mark.slow

NUM_STEPS = 10


def settings(**values: Any) -> TrainingSettings:
    return TrainingSettings(log_every_steps=2, checkpoint_every_steps=4, **values)


def figures_of_ranks(
    examples: Artifact, vocabulary: Artifact, rank: int, world_size: int
) -> dict[str, float]:
    """Held-out figures of a model that nobody trained, and those of the baselines."""
    tokenizer = load_tokenizer(vocabulary)
    torch.manual_seed(7)
    model = PretrainingModel(encoder_config("tiny", tokenizer.vocab_size))
    return HeldoutExamples(examples, tokenizer, rank, world_size).figures(model, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedJob(SmallJob):
    name: ClassVar[str] = "evaluated"

    vocabulary: Artifact

    def on_rank(self) -> "EvaluatedTraining":
        return EvaluatedTraining(self)


class EvaluatedTraining(SmallTraining):
    def final_evaluation(self, model: Any) -> dict[str, Any]:
        return figures_of_ranks(self.job.examples, self.job.vocabulary, *self.ranks)


def meets_a_mistake(rank: int, step: int) -> None:
    if (rank, step) == (1, 5):
        raise UserError("the shard must have its checksum, found another")


def test_a_mistake_that_one_rank_meets_ends_the_training_with_its_sentence(
    small_examples: Artifact, local_ray: None, tmp_path: Path
) -> None:
    job = SmallJob(examples=small_examples, settings=settings(), meets=meets_a_mistake)
    with pytest.raises(UserError, match=r"^the shard must have its checksum, found another$"):
        train_small(job, tmp_path, ranks=2)


def test_a_rank_without_a_batch_to_evaluate_waits_for_nobody_and_figures_are_those_of_one_rank(
    small_examples: Artifact, small_vocabulary: Artifact, local_ray: None, tmp_path: Path
) -> None:
    job = EvaluatedJob(
        examples=small_examples, vocabulary=small_vocabulary, settings=settings(),
        evaluation_examples=1,
    )  # fmt: skip
    told, _ = train_small(job, tmp_path, ranks=2)
    last = told["history"][-1]
    assert last["step"] == NUM_STEPS
    assert last["eval/mlm_loss"] > 0

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of the two ranks on two cores
    try:
        alone = figures_of_ranks(small_examples, small_vocabulary, 0, 1)
    finally:
        torch.set_num_threads(num_threads)
    assert told["final"] == alone  # to the bit


def test_a_cluster_that_stays_busy_is_named(
    small_examples: Artifact, local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "0.5")
    monkeypatch.setattr("pipelines.train.launch._OUTAGE_SECONDS", 5.0)
    blocker = ray.remote(num_cpus=1)(lambda: time.sleep(120)).remote()
    try:
        with pytest.raises(UserError, match=r"found no room for 2 workers of 1 CPU each .* other"):
            train_small(SmallJob(examples=small_examples), tmp_path, ranks=2)
    finally:
        ray.cancel(blocker, force=True)
