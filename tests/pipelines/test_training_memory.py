"""A training run that cannot fit its node is refused in a sentence, before its first step."""

import psutil
import pytest
from pyarrow.fs import LocalFileSystem

from bert_core.config import encoder_config
from bert_core.model.catalogue import PretrainingModel, build_model
from bert_core.training.optimization import state_size
from bert_core.training.optimizer_settings import OptimizationConfig
from pipelines.artifacts import ArtifactStore
from pipelines.config.errors import UserError
from pipelines.config.runtime import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.training import preflight
from pipelines.training.checkpoint_files import CheckpointFolder
from pipelines.training.launch import Launch, launch
from pipelines.training.placement import BatchSplit
from pipelines.training.preflight import node_memory
from pipelines.training.ranks import Work
from pipelines.training.settings import TrainingSettings
from pipelines.training.worker import run
from tests.bert_core.batches import pretraining_batch

VOCABULARY = 300


def new_model() -> PretrainingModel:
    return PretrainingModel(encoder_config("tiny", VOCABULARY), next_sentence=False)


def test_what_an_optimizer_keeps_is_known_before_it_is_built():
    model = new_model()
    num_parameters = sum(p.numel() for p in model.parameters())
    assert state_size(model, OptimizationConfig(num_steps=9)) == 2 * num_parameters
    averaging = OptimizationConfig(num_steps=9, averaging_decay=0.9)
    assert state_size(model, averaging) == 3 * num_parameters


def test_a_node_has_its_memory_or_what_its_container_allows(tmp_path):
    total, limit = psutil.virtual_memory().total, tmp_path / "memory.max"
    assert node_memory(limit) == total
    for written, expected in (("max", total), ("1048576", 1 << 20), (str(total * 2), total)):
        limit.write_text(f"{written}\n")
        assert node_memory(limit) == expected


@pytest.mark.slow
def test_a_real_training_that_cannot_fit_ends_with_the_sentence(local_ray, tmp_path):
    def must_not_be_read(step):
        raise AssertionError("what is read ahead would be thrown away")

    def worker(values):
        huge = pretraining_batch([64] * 4_000, VOCABULARY)
        preflight.node_memory = lambda: psutil.Process().memory_info().rss + (64 << 20)
        work = Work(
            stage="pretraining",
            section="pretraining",
            settings=TrainingSettings(),
            num_steps=2,
            evaluate_every_steps=2,
            build_model=lambda: build_model(
                "pretraining", encoder_config("tiny", VOCABULARY), next_sentence=False
            ),
            micro_batches=must_not_be_read,
            batches_of=must_not_be_read,
            largest_batches=lambda: [huge],
            evaluate=lambda model: {},
            final_evaluation=lambda model: {},
        )
        return run(work, values)

    job = Launch(
        worker=worker,
        values={"precision": "float32", "run_id": None, "tracking_uri": None},
        name="huge",
        checkpoints=CheckpointFolder(str(tmp_path / "work"), LocalFileSystem()),
        cut=BatchSplit(section="pretraining", global_batch_size=1, micro_batch_size=1),
    )
    context = StageContext(
        store=ArtifactStore(tmp_path), runtime=RuntimeSettings(training_workers=1)
    )
    with pytest.raises(UserError, match=r"^the largest batch of pretraining does not fit .* lower"):
        launch(job, context, lambda checkpoint, told: told)
