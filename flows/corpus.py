"""Flow: from sources to a corpus."""

from prefect import flow

from flows import stages
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import CorpusRecipe, read_recipe

_DEMO = read_recipe(CorpusRecipe, "demo")


def make_corpus(run: Run[CorpusRecipe]) -> Artifact:
    """The corpus that the recipe names."""
    corpus: Artifact = run.stage("corpus", stages.corpus, run.recipe.corpus, run.context)
    return corpus


@flow(name="corpus", flow_run_name="corpus of {recipe.name}", persist_result=False)
def corpus(recipe: CorpusRecipe = _DEMO) -> Story:
    """Read the sources, clean and deduplicate them, divide documents into train and held-out."""
    with started_run("corpus", recipe) as run:
        make_corpus(run)
    return run.story
