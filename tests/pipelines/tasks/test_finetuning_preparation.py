"""What a fine-tuning's settings make of a model before it learns."""

import numpy as np
import torch

from bert_core.vocabulary import WordPieceTokenizer
from pipelines.stages.finetuning.settings import FinetuningSettings
from pipelines.stages.finetuning.training import prepare
from pipelines.tasks import Items, Reading, family
from tests.pipelines.tasks.letters import CONFIG, learn, parts


def test_what_is_frozen_is_as_the_settings_say(tokenizer: WordPieceTokenizer) -> None:
    task, (train_items, _) = family("classification"), parts("classification")
    examples = task.examples(train_items, tokenizer, Reading(32))
    model = task.build_model(CONFIG, train_items.labels)
    settings = FinetuningSettings(freeze_embeddings=True, freeze_layers=1)
    prepare(model, settings, examples)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert not any(name.startswith("encoder.embeddings") for name in trained)
    assert not any(name.startswith("encoder.layers.0.") for name in trained)
    assert any(name.startswith("encoder.layers.1.") for name in trained)


def test_years_are_learned_as_well_as_counts(tokenizer: WordPieceTokenizer) -> None:
    task, (train_items, heldout) = family("regression"), parts("regression")

    def answers(scale: float, offset: float) -> np.ndarray:
        rows = [{**row, "value": offset + scale * row["value"]} for row in train_items.rows]
        examples = task.examples(Items(rows), tokenizer, Reading(32))
        torch.manual_seed(0)
        model = task.build_model(CONFIG, ())
        prepare(model, FinetuningSettings(), examples)
        learn(model, examples, 60, rate=1e-3, warmup=0, precision="bf16")
        return np.array(task.answers(model, tokenizer, heldout, Reading(32)).values)

    counts, years = answers(1, 0), answers(10, 1990)
    np.testing.assert_allclose((years - 1990) / 10, counts, atol=0.02)


def test_a_model_reads_no_more_tokens_than_it_was_fine_tuned_on(
    tokenizer: WordPieceTokenizer,
) -> None:
    task, (train_items, _) = family("classification"), parts("classification")
    examples = task.examples(train_items, tokenizer, Reading(8))
    model = task.build_model(CONFIG, train_items.labels)
    prepare(model, FinetuningSettings(max_tokens=8), examples)
    assert model.config.max_position_embeddings == 8
    assert len(model.encoder.embeddings.position) == 8
