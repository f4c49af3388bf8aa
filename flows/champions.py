"""What a run does with a version that proved itself: compare, ask a person, give it its alias."""

from typing import TypeVar

from prefect.runtime import deployment

from flows.approval import approval_of, approved
from flows.reporting.events import tell_of_promotion
from flows.run import Run
from flows.tasks import task_that_reaches_out
from pipelines.core.recipes.ladder import EndToEndRecipe
from pipelines.registry.comparison.evaluation import Evaluation
from pipelines.registry.comparison.judgement import judge
from pipelines.registry.promotion import settle
from pipelines.registry.registration import RegisteredModel

RecipeType = TypeVar("RecipeType", bound=EndToEndRecipe)

comparison = task_that_reaches_out(judge)
promotion = task_that_reaches_out(settle)


def compare_and_promote(
    run: Run[RecipeType], model: RegisteredModel, evaluation: Evaluation | None
) -> None:
    """Give a version that proved itself the alias that it earns; `evaluation` is that of its proof.

    What was found and moved is part of the run's story.
    """
    names = run.recipe.registration
    judgement = run.stage(
        f"comparison, {model.kind}", comparison,
        run.tracker, run.context.store, model.name, model.version, names.alias,
        names.comparison, evaluation,
    )  # fmt: skip
    by = f"the run {run.story.flow_run_url or run.recipe.name}"
    if judgement.is_better and names.approval_hours:
        # A run that no page shows asks nobody.
        answer = approval_of(judgement, names) if deployment.id is not None else None
        judgement, by = approved(judgement, answer), answer.who if answer else by
    run.story.judgements.append(judgement)
    promoted = run.stage(f"promotion, {model.kind}", promotion, run.tracker, judgement, names, by)
    run.story.promotions.append(promoted)
    if promoted.previous_version != promoted.version:
        tell_of_promotion(promoted)
