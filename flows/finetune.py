"""Flow: from raw text and labelled texts to a classifier."""

from typing import NamedTuple

from prefect import flow

from flows import stages
from flows.pretrain import Pretrained, make_encoder
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import FinetuningRecipe, read_recipe
from pipelines.stages.labelled.settings import NoTask

_DEMO = read_recipe(FinetuningRecipe, "demo")


class Finetuned(NamedTuple):
    """A classifier, the labelled texts it learned from and the encoder it started from."""

    pretrained: Pretrained
    task: Artifact
    classifier: Artifact


def has_task(recipe: FinetuningRecipe) -> bool:
    """Whether the recipe names labelled texts to fine-tune on."""
    return not isinstance(recipe.task.labelled, NoTask)


def make_classifier(run: Run[FinetuningRecipe], pretrained: Pretrained) -> Finetuned:
    """The classifier that the recipe names; beside it, for comparison, one from random weights."""
    settings = run.recipe.finetuning
    task = run.stage(
        "labelled texts", stages.labelled_texts, run.recipe.task, pretrained.corpus, run.context
    )
    classifier = run.stage(
        "fine-tuning", stages.finetuning, settings, task, pretrained.encoder, run.context
    )
    if settings.compare_with_random:
        run.stage(
            "fine-tuning, random", stages.finetuning, settings, task, pretrained.encoder,
            run.context, initialization="random",
        )  # fmt: skip
    return Finetuned(pretrained, task, classifier)


@flow(name="finetune", flow_run_name="fine-tuning of {recipe.name}", persist_result=False)
def finetune(recipe: FinetuningRecipe = _DEMO) -> Story:
    """Fine-tune a classifier from the pretrained encoder and, to compare, from random weights."""
    with started_run("finetune", recipe) as run:
        make_classifier(run, make_encoder(run))
    return run.story
