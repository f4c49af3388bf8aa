"""A training that begins informed: at the loss of token frequencies, on any number of ranks."""

import json

import pytest

from pipelines.artifacts import ArtifactStore
from pipelines.core.cluster.ranks import Ranks
from pipelines.core.stage import StageContext
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder

SETTINGS = PretrainingSettings(
    size="tiny",
    num_steps=3,
    examples_per_step=8,
    micro_batch_examples=4,
    learning_rate=1e-6,
    log_every_steps=1,
    evaluate_every_steps=3,
    checkpoint_every_steps=3,
    precision="float32",
)


def test_it_begins_at_the_frequencies_on_one_rank_and_on_two(
    small_examples, small_vocabulary, local_ray, tmp_path
):
    def losses(initialization: str, workers: int) -> list[float]:
        store = ArtifactStore(tmp_path / f"{initialization}{workers}")
        encoder = build_encoder(
            SETTINGS.model_copy(update={"initialization": initialization}),
            small_examples,
            small_vocabulary,
            StageContext(store=store, ranks=Ranks(workers=workers)),
        )
        points = json.loads(encoder.local("history.json").read_text())
        found = [point["train/mlm_loss"] for point in points]
        return [*found, points[-1]["eval/mlm_loss"], points[-1]["baseline/mlm_loss"]]

    informed, together = losses("informed", 1), losses("informed", 2)
    assert all(abs(one - two) < 1e-4 * one for one, two in zip(informed, together, strict=True))
    published, baseline = losses("published", 1), informed[-1]
    assert max(informed[:-1]) < baseline + 0.15
    assert min(published[:-1]) > baseline + 0.15


def test_an_encoder_that_is_there_already_keeps_its_weights():
    with pytest.raises(ValueError, match="initialization must be left at published"):
        PretrainingSettings(encoder="models:/some@champion", initialization="informed")
