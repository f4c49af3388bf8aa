"""Flow: what a classifier answers on held-out texts."""

from prefect import flow

from flows import stages
from flows.finetune import Finetuned, make_classifier
from flows.pretrain import make_encoder
from flows.reporting.story import Story
from flows.run import Run, started_run
from pipelines.artifacts import Artifact
from pipelines.core.recipes import FinetuningRecipe, read_recipe

_DEMO = read_recipe(FinetuningRecipe, "demo")


def make_evaluation(run: Run[FinetuningRecipe], finetuned: Finetuned) -> Artifact:
    """Precision, recall and F1 of each label, and which labels are confused."""
    evaluation: Artifact = run.stage(
        "evaluation", stages.evaluation, finetuned.classifier, finetuned.task, run.context
    )
    return evaluation


@flow(name="evaluate", flow_run_name="evaluation of {recipe.name}", persist_result=False)
def evaluate(recipe: FinetuningRecipe = _DEMO) -> Story:
    """Evaluate the recipe's classifier on its held-out texts, label by label."""
    with started_run("evaluate", recipe) as run:
        make_evaluation(run, make_classifier(run, make_encoder(run)))
    return run.story
