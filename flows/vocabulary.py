"""Flow: from a corpus to its WordPiece vocabulary."""

from typing import NamedTuple

from prefect import flow

from flows import stages
from flows.corpus import make_corpus
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import VocabularyRecipe, read_recipe

_DEMO = read_recipe(VocabularyRecipe, "demo")


class Text(NamedTuple):
    """A corpus and the vocabulary learned from it."""

    corpus: Artifact
    vocabulary: Artifact


def make_vocabulary(run: Run[VocabularyRecipe]) -> Text:
    """The vocabulary that the recipe names, and the corpus it was learned from."""
    corpus = make_corpus(run)
    vocabulary = run.stage(
        "vocabulary", stages.vocabulary, run.recipe.vocabulary, corpus, run.context
    )
    return Text(corpus, vocabulary)


@flow(name="vocabulary", flow_run_name="vocabulary of {recipe.name}", persist_result=False)
def vocabulary(recipe: VocabularyRecipe = _DEMO) -> Story:
    """Learn the WordPiece vocabulary from the training part of the corpus."""
    with started_run("vocabulary", recipe) as run:
        make_vocabulary(run)
    return run.story
