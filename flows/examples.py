"""Flow: from documents to training examples."""

from typing import NamedTuple

from prefect import flow

from flows import stages
from flows.reporting.story import Story
from flows.run import Run, started_run
from flows.vocabulary import make_vocabulary
from pipelines.artifacts import Artifact
from pipelines.core.recipes import ExamplesRecipe, read_recipe

_DEMO = read_recipe(ExamplesRecipe, "demo")


class Prepared(NamedTuple):
    """Everything that a pretraining reads."""

    corpus: Artifact
    vocabulary: Artifact
    examples: Artifact


def make_examples(run: Run[ExamplesRecipe]) -> Prepared:
    """The examples that the recipe names, and what they were made from."""
    text = make_vocabulary(run)
    examples = run.stage("examples", stages.examples, run.recipe.examples, *text, run.context)
    return Prepared(*text, examples)


@flow(name="examples", flow_run_name="examples of {recipe.name}", persist_result=False)
def examples(recipe: ExamplesRecipe = _DEMO) -> Story:
    """Write masked-language-model and next-sentence examples as Arrow shards."""
    with started_run("examples", recipe) as run:
        make_examples(run)
    return run.story
