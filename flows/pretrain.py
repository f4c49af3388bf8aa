"""Flow: from raw text to a pretrained encoder."""

from typing import NamedTuple

from prefect import flow

from flows import stages
from flows.examples import make_examples
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import PretrainingRecipe, read_recipe

_DEMO = read_recipe(PretrainingRecipe, "demo")


class Pretrained(NamedTuple):
    """An encoder and everything it was made from."""

    corpus: Artifact
    vocabulary: Artifact
    examples: Artifact
    encoder: Artifact


def make_encoder(run: Run[PretrainingRecipe]) -> Pretrained:
    """The encoder that the recipe names, and what it was made from."""
    prepared = make_examples(run)
    encoder = run.stage(
        "pretraining", stages.pretraining, run.recipe.pretraining,
        prepared.examples, prepared.vocabulary, run.context,
    )  # fmt: skip
    return Pretrained(*prepared, encoder)


@flow(name="pretrain", flow_run_name="pretraining of {recipe.name}", persist_result=False)
def pretrain(recipe: PretrainingRecipe = _DEMO) -> Story:
    """Pretrain an encoder under Ray Train, with held-out evaluation while it learns."""
    with started_run("pretrain", recipe) as run:
        make_encoder(run)
    return run.story
