"""Promotion: by a run, after a comparison, and by a person, with the flows promote and rollback.

A run compares a verified version, asks for approval if the recipe requires it, and sets the alias.
A person can give an alias to any version, or back to the one that had it before.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Timer
from typing import cast
from uuid import UUID

from prefect import flow, pause_flow_run, resume_flow_run
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.exceptions import FlowPauseTimeout, NotPausedError
from prefect.input import RunInput
from prefect.logging import get_run_logger
from prefect.runtime import deployment, flow_run
from pydantic import Field

from flows.reporting.publishing import costing_the_page_alone
from flows.run import Run, network_task
from flows.stopping import enter_flow, flow_in_progress
from pipelines.config.errors import UserError
from pipelines.recipes.connections import check_tracker, open_tracker
from pipelines.recipes.models import EndToEndRecipe
from pipelines.recipes.registration import (
    AliasRecipe,
    PromotionRecipe,
    RegistrationSettings,
    RollbackRecipe,
)
from pipelines.registry import promotion as registry
from pipelines.registry.comparison.evaluation import Evaluation
from pipelines.registry.comparison.versions import Comparison, compare_versions
from pipelines.registry.promotion import Promotion
from pipelines.registry.registration import RegisteredModel

logger = logging.getLogger(__name__)

PROMOTED = "bertsmith.model.promoted"  # an event that automations react to
_PROMOTION, _ROLLBACK = PromotionRecipe(), RollbackRecipe()

_compare = network_task(compare_versions)
_promote_if_better = network_task(registry.promote_if_better)
_holder_of = network_task(registry.holder_of)

_NOBODY = "nobody in time"
# Prefect fails a run whose pause timed out, so the run stops waiting earlier.
_GRACE_SECONDS = 600


@flow(
    name="promote",
    flow_run_name="{recipe.name}: {recipe.source} becomes {recipe.alias}",
    persist_result=False,
)
def promote(recipe: PromotionRecipe = _PROMOTION) -> Promotion:
    """Give an alias to the version that another alias or a number names."""
    return _moved(registry.promote, recipe, recipe.source, overrules=recipe.force)


@flow(
    name="rollback",
    flow_run_name="{recipe.name}: {recipe.alias} goes back",
    persist_result=False,
)
def rollback(recipe: RollbackRecipe = _ROLLBACK) -> Promotion:
    """Give an alias back to the version that had it before; no run of a recipe undoes that."""
    return _moved(registry.rollback, recipe)


def _moved(
    move: Callable[..., Promotion], recipe: AliasRecipe, *source: str, **options: bool
) -> Promotion:
    """Move the alias in a task of this flow run, and report it by an event and on a page."""
    enter_flow()
    check_tracker(recipe.runtime)
    back = "" if source else " goes back"
    task = network_task(move).with_options(task_run_name=f"{recipe.alias} of {recipe.name}{back}")
    tracker, holder = open_tracker(recipe.runtime), recipe.holder
    with flow_in_progress():
        if holder is None:  # known before the move, which may be tried twice
            holder = cast(int, _holder_of(tracker, recipe.name, recipe.alias))
        moved = task(
            tracker, recipe.name, *source, recipe.alias, recipe.reason, recipe.who,
            holder=holder, **options,
        )  # fmt: skip
    promotion = cast(Promotion, moved)  # a coroutine only if the task is one
    emit_promotion(promotion)
    before = f", before it was {promotion.previous_version}" if promotion.previous_version else ""
    with costing_the_page_alone(get_run_logger().warning):
        create_markdown_artifact(
            f"`{promotion.alias}` of **{promotion.name}** is now version {promotion.version}"
            f"{before}: {promotion.reason}.",
            key="promotion",
            description=f"{promotion.name}@{promotion.alias} is version {promotion.version}",
        )
    return promotion


def emit_promotion(promotion: Promotion) -> None:
    """Emit an event that names model, version and alias; a failure is only logged."""
    try:
        emit_event(
            event=PROMOTED,
            resource={
                "prefect.resource.id": f"bertsmith.model.{promotion.name}",
                "prefect.resource.name": promotion.name,
                "bertsmith.alias": promotion.alias,
                "bertsmith.version": str(promotion.version),
            },
            payload={
                "name": promotion.name,
                "alias": promotion.alias,
                "version": str(promotion.version),
                "previous_version": str(promotion.previous_version or ""),
                "model_uri": f"models:/{promotion.name}@{promotion.alias}",
            },
        )
    # The alias has moved: no failure of the event changes that.
    except Exception as error:  # noqa: BLE001
        logger.warning("the event for the promotion of %s was not sent: %s", promotion.name, error)


class Approval(RunInput):
    """Whether the version becomes what people use."""

    approve: bool = Field(default=False, description="Give the alias to the new version.")
    who: str = Field(default="", description="Your name, for the history.")
    remark: str = Field(default="", description="Why, for the history.")


def compare_and_promote(
    run: Run[EndToEndRecipe], model: RegisteredModel, evaluation: Evaluation | None
) -> None:
    """Compare a verified version with the champion, and promote it if it is better.

    `evaluation` is that of its verification. Comparison and promotion go into the run's report.
    """
    names = run.recipe.registration
    comparison = run.stage(
        f"comparison, {model.kind}", _compare,
        run.tracker, run.context.store, model.name, model.version, names.alias,
        names.comparison, evaluation,
    )  # fmt: skip
    by = f"the run {run.report.flow_run_url or run.recipe.name}"
    if comparison.is_better and names.approval_hours:
        # Without a deployment there is no page to ask on.
        answer = approval_of(comparison, names) if deployment.id is not None else None
        comparison, by = approved(comparison, answer), answer.who if answer else by
    run.report.comparisons.append(comparison)
    promoted = run.stage(
        f"promotion, {model.kind}", _promote_if_better, run.tracker, comparison, names, by
    )
    run.report.promotions.append(promoted)
    if promoted.previous_version != promoted.version:
        emit_promotion(promoted)


def check_approval_limit(names: RegistrationSettings) -> None:
    """Raise UserError if the run needs approval and its deployment has a concurrency limit.

    Prefect gives the slot of a waiting run to another run, and then ends the one that waited.
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
    """A person's answer on the flow run's page; None if there was none in time."""
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
    """Resume the paused run from this process if no answer comes within `seconds`."""
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
    """The comparison after the approval; without an answer the version waits for one."""
    if answer is None:
        by_hand = f"bertsmith promote {comparison.name} --version {comparison.version}"
        reason = f"{comparison.reason}; it waits for a person's approval: {by_hand}"
        return replace(comparison, is_better=False, awaits_approval=True, reason=reason)
    remark = f": {answer.remark}" if answer.remark else ""
    if answer.approve:
        return replace(comparison, reason=f"{comparison.reason}; approved by {answer.who}{remark}")
    declined = f"{comparison.reason}; {answer.who} did not approve it{remark}"
    return replace(comparison, is_better=False, reason=declined)
