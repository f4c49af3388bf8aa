"""A training run that begins informed: by token frequencies, alike on any number of ranks."""

import json
from dataclasses import replace

import pytest

from bert_core.config import encoder_config
from bert_core.model.catalogue import EncoderModel
from bert_core.training.state import save_model
from pipelines.settings import RuntimeSettings
from pipelines.stage import StageContext
from pipelines.stages.examples.settings import ExampleSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import PretrainingSettings
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.settings import VocabularySettings
from pipelines.stages.vocabulary.stage import build_vocabulary, load_tokenizer
from pipelines.store import ArtifactStore

SETTINGS = PretrainingSettings(
    size="tiny",
    num_steps=3,
    global_batch_size=8,
    micro_batch_size=4,
    learning_rate=1e-6,
    log_every_steps=1,
    evaluate_every_steps=3,
    checkpoint_every_steps=3,
    precision="float32",
)


@pytest.mark.slow
def test_it_begins_at_the_frequencies_on_one_rank_and_on_two(
    small_examples, small_vocabulary, local_ray, tmp_path
):
    def losses(initialization: str, workers: int) -> list[float]:
        store = ArtifactStore(tmp_path / f"{initialization}{workers}")
        encoder = build_encoder(
            SETTINGS.model_copy(update={"initialization": initialization}),
            small_examples,
            small_vocabulary,
            StageContext(store=store, runtime=RuntimeSettings(training_workers=workers)),
        )
        points = json.loads(encoder.local("history.json").read_text())
        found = [point["train/mlm_loss"] for point in points]
        return [*found, points[-1]["eval/mlm_loss"], points[-1]["baseline/mlm_loss"]]

    informed, together = losses("informed", 1), losses("informed", 2)
    assert all(abs(one - two) < 1e-4 * one for one, two in zip(informed, together, strict=True))
    published, frequent = losses("published", 1), losses("frequencies", 1)
    baseline = informed[-1]
    assert max(frequent[:-1]) < baseline + 0.15
    assert min(published[:-1]) > baseline + 0.15
    assert informed[0] != pytest.approx(frequent[0], abs=1e-3)  # word vectors say more


@pytest.mark.slow
def test_a_head_that_an_encoder_does_not_bring_begins_at_the_frequencies(
    small_corpus, small_vocabulary, small_context, local_ray, tmp_path
):
    tokenizer = load_tokenizer(small_vocabulary)
    config = encoder_config("tiny", tokenizer.vocab_size, max_position_embeddings=64)
    save_model(tmp_path / "bare", EncoderModel(config))
    tokenizer.save(tmp_path / "bare")
    wanted = VocabularySettings(encoder=str(tmp_path / "bare"))
    vocabulary = build_vocabulary(wanted, small_corpus, small_context)
    chosen = ExampleSettings(max_tokens=64, shard_tokens=1000)
    examples = build_examples(chosen, small_corpus, vocabulary, small_context)
    settings = SETTINGS.model_copy(update={"encoder": str(tmp_path / "bare")})
    context = replace(small_context, runtime=RuntimeSettings(training_workers=1))
    encoder = build_encoder(settings, examples, vocabulary, context)
    assert encoder.manifest.settings["initialization"] == "frequencies"
    points = json.loads(encoder.local("history.json").read_text())
    baseline = points[-1]["baseline/mlm_loss"]
    assert max(point["train/mlm_loss"] for point in points) < baseline + 0.15
