"""What a run does with a verified version: compare it, ask a person, give it its alias."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Timer
from typing import TypeVar
from uuid import UUID

from prefect import pause_flow_run, resume_flow_run
from prefect.client.orchestration import get_client
from prefect.exceptions import FlowPauseTimeout, NotPausedError
from prefect.input import RunInput
from prefect.runtime import deployment, flow_run
from pydantic import Field

from flows.promote import emit_promotion
from flows.run import Run, network_task
from pipelines.config.errors import UserError
from pipelines.recipes.models import EndToEndRecipe
from pipelines.recipes.registration import RegistrationSettings
from pipelines.registry.comparison.evaluation import Evaluation
from pipelines.registry.comparison.versions import Comparison, compare_versions
from pipelines.registry.promotion import promote_if_better
from pipelines.registry.registration import RegisteredModel

RecipeType = TypeVar("RecipeType", bound=EndToEndRecipe)

compare = network_task(compare_versions)
promote = network_task(promote_if_better)

_NOBODY = "nobody in time"
# Prefect's server calls a run failed whose pause is over: the run's own waiting ends before that.
_GRACE_SECONDS = 600


class Approval(RunInput):
    """Whether the version becomes what people use."""

    approve: bool = Field(default=False, description="Give the alias to the new version.")
    who: str = Field(default="", description="Your name, for the history.")
    remark: str = Field(default="", description="Why, for the history.")


def compare_and_promote(
    run: Run[RecipeType], model: RegisteredModel, evaluation: Evaluation | None
) -> None:
    """Give a version that proved itself the alias that it earns; `evaluation` is that of its proof.

    Comparison and promotion are part of the run's report.
    """
    names = run.recipe.registration
    comparison = run.stage(
        f"comparison, {model.kind}", compare,
        run.tracker, run.context.store, model.name, model.version, names.alias,
        names.comparison, evaluation,
    )  # fmt: skip
    by = f"the run {run.report.flow_run_url or run.recipe.name}"
    if comparison.is_better and names.approval_hours:
        # A run that no page shows asks nobody.
        answer = approval_of(comparison, names) if deployment.id is not None else None
        comparison, by = approved(comparison, answer), answer.who if answer else by
    run.report.comparisons.append(comparison)
    promoted = run.stage(f"promotion, {model.kind}", promote, run.tracker, comparison, names, by)
    run.report.promotions.append(promoted)
    if promoted.previous_version != promoted.version:
        emit_promotion(promoted)


def check_approval_limit(names: RegistrationSettings) -> None:
    """Raise UserError where the run asks a person and its deployment has a limit of its own.

    Prefect gives the slot to another run while one waits, and ends the one that waited because it
    no longer has the slot.
    """
    if not names.approval_hours or deployment.id is None:
        return
    with get_client(sync_client=True) as client:
        found = client.read_deployment(UUID(deployment.id))
    if (limit := found.global_concurrency_limit) is not None:
        raise UserError(
            f"the deployment {found.name!r} has a concurrency limit of {limit.limit}, under which "
            "Prefect ends runs that wait for approval; limit its work pool instead, or set "
            "registration.approval_hours=0"
        )


def approval_of(comparison: Comparison, names: RegistrationSettings) -> Approval | None:
    """What a person answers on the flow run's page; None where nobody did in time."""
    asked = Approval.with_initial_data(
        description=f"Shall **{comparison.name} version {comparison.version}** become "
        f"`{names.alias}`? It is {comparison.reason}."
    )
    seconds = names.approval_hours * 3600
    try:
        with _resumed_after(seconds):
            answer: Approval = pause_flow_run(
                wait_for_input=asked,
                timeout=int(seconds) + _GRACE_SECONDS,
                key=f"{comparison.name}-{comparison.version}",
            )
    except FlowPauseTimeout:
        return None
    if answer.who == _NOBODY:
        return None
    return answer.model_copy(update={"who": answer.who or "a person"})


@contextmanager
def _resumed_after(seconds: float) -> Iterator[None]:
    """This process answers for whom it waits in vain."""
    timer = Timer(seconds, _answer_for_nobody, [UUID(flow_run.id)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _answer_for_nobody(run_id: UUID) -> None:
    with suppress(NotPausedError):  # a person answered at this very moment
        resume_flow_run(run_id, run_input={"approve": False, "who": _NOBODY})


def approved(comparison: Comparison, answer: Approval | None) -> Comparison:
    """The comparison after a person was asked; without an answer the version waits for one."""
    if answer is None:
        by_hand = f"bertsmith promote {comparison.name} --version {comparison.version}"
        reason = f"{comparison.reason}; it waits for a person's approval: {by_hand}"
        return replace(comparison, is_better=False, awaits_approval=True, reason=reason)
    remark = f": {answer.remark}" if answer.remark else ""
    if answer.approve:
        return replace(comparison, reason=f"{comparison.reason}; approved by {answer.who}{remark}")
    declined = f"{comparison.reason}; {answer.who} did not approve it{remark}"
    return replace(comparison, is_better=False, reason=declined)
