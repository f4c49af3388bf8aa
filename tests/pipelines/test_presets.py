"""Every preset says what it is for, and a small copy of each trains to its end."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.recipes.files import preset_names, read_recipe
from pipelines.recipes.recipe import Recipe
from pipelines.settings import RuntimeSettings
from pipelines.stages.examples.stage import build_examples
from pipelines.stages.pretraining.settings import phases_of
from pipelines.stages.pretraining.stage import build_encoder
from pipelines.stages.vocabulary.stage import build_vocabulary
from pipelines.store import Artifact, ArtifactStore
from pipelines.tasks import FAMILIES, family_module

# What makes a preset small; whatever else it says stays.
SMALL = (
    "vocabulary.size=200", "examples.max_tokens=64", "examples.shard_tokens=4000",
    "pretraining.size=tiny",
    "pretraining.global_batch_size=8", "pretraining.micro_batch_size=4",
    "pretraining.evaluation_examples=16", "pretraining.final_evaluation_examples=16",
)  # fmt: skip
SHORT = (
    "examples.short_tokens=24", "pretraining.short_global_batch_size=16",
    "pretraining.short_micro_batch_size=8",
)  # fmt: skip


def small(name: str) -> Recipe:
    plain = read_recipe(name)
    overrides = [*SMALL]
    if plain.pretraining.budget_minutes is None:
        overrides.append("pretraining.num_steps=12")
    else:
        overrides.append("pretraining.budget_minutes=0.2")
    if plain.pretraining.short_steps_fraction:
        overrides += SHORT
    return read_recipe(name, overrides)


def pretrains(name: str) -> bool:
    """Whether a preset pretrains from random weights: others start from an encoder."""
    dataset = read_recipe(name).dataset.source
    return name != "continue" and dataset.kind != "labelled_file"


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_preset_of_its_name(name: str) -> None:
    recipe = read_recipe(name.replace("_", "-"))
    assert family_module(recipe.dataset.family) == name
    assert recipe.registration.classifier_name == recipe.name


def test_the_lamb_preset_has_the_published_phases() -> None:
    settings = read_recipe("large-64k-lamb").pretraining
    short, full = phases_of(settings)
    assert (short.num_steps, full.num_steps) == (7038, 1563)
    assert (short.cut.global_batch_size, full.cut.global_batch_size) == (65_536, 32_768)
    assert round(settings.num_steps * settings.warmup_fraction) == 2000


def test_the_original_preset_has_the_published_schedule() -> None:
    settings = read_recipe("original").pretraining
    assert round(settings.num_steps * settings.warmup_fraction) == 10_000
    assert [phase.num_steps for phase in phases_of(settings)] == [900_000, 100_000]


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in preset_names() if pretrains(each)])
def test_a_small_copy_of_a_preset_trains_to_its_end(
    name: str, small_corpus: Artifact, small_context, local_ray: None, tmp_path: Path
) -> None:
    recipe = small(name)
    context = replace(
        small_context,
        store=ArtifactStore(tmp_path),
        runtime=RuntimeSettings(training_workers=1, cpus_per_worker=1),
    )
    vocabulary = build_vocabulary(recipe.vocabulary, small_corpus, context)
    examples = build_examples(recipe.examples, small_corpus, vocabulary, context)
    encoder = build_encoder(recipe.pretraining, examples, vocabulary, context)
    assert encoder.statistics["num_steps"] >= 10
    assert 0 < encoder.statistics["eval/mlm_loss"] < 20
    assert "eval/mlm_accuracy" in encoder.statistics
