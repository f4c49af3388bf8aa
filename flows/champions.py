"""What a run does with a version that proved itself: compare, ask a person, give it its alias."""

from dataclasses import replace
from typing import TypeVar

from prefect import pause_flow_run
from prefect.exceptions import FlowPauseTimeout
from prefect.input import RunInput
from prefect.runtime import deployment
from pydantic import Field

from flows.reporting.events import tell_of_promotion
from flows.run import Run
from flows.tasks import task_that_reaches_out
from pipelines.core.recipes.ladder import EndToEndRecipe
from pipelines.registry.comparison.evaluation import Evaluation
from pipelines.registry.comparison.judgement import Judgement, judge
from pipelines.registry.promotion import settle
from pipelines.registry.registration import RegisteredModel
from pipelines.registry.settings import RegistrationSettings

RecipeType = TypeVar("RecipeType", bound=EndToEndRecipe)

comparison = task_that_reaches_out(judge)
promotion = task_that_reaches_out(settle)


class Approval(RunInput):
    """Whether the version becomes what people use."""

    approve: bool = Field(default=False, description="Give the alias to the new version.")
    who: str = Field(default="", description="Your name, for the history.")
    remark: str = Field(default="", description="Why, for the history.")


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


def approval_of(judgement: Judgement, names: RegistrationSettings) -> Approval | None:
    """What a person answers on the flow run's page; None where nobody did in time."""
    asked = Approval.with_initial_data(
        description=f"Shall **{judgement.name} version {judgement.version}** become "
        f"`{names.alias}`? It is {judgement.reason}."
    )
    try:
        answer: Approval = pause_flow_run(
            wait_for_input=asked,
            timeout=int(names.approval_hours * 3600),
            key=f"{judgement.name}-{judgement.version}",
        )
    except FlowPauseTimeout:
        return None
    return answer.model_copy(update={"who": answer.who or "a person"})


def approved(judgement: Judgement, answer: Approval | None) -> Judgement:
    """The judgement after a person was asked; without an answer the version waits for one."""
    if answer is None:
        by_hand = f"bertsmith promote {judgement.name} --version {judgement.version}"
        reason = f"{judgement.reason}; it waits for a person's approval: {by_hand}"
        return replace(judgement, is_better=False, reason=reason)
    remark = f": {answer.remark}" if answer.remark else ""
    if answer.approve:
        return replace(judgement, reason=f"{judgement.reason}; approved by {answer.who}{remark}")
    declined = f"{judgement.reason}; {answer.who} did not approve it{remark}"
    return replace(judgement, is_better=False, reason=declined)
