"""Flows of a person's own choice: give an alias to a version, or back to the one that had it."""

from typing import cast

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.alias_recipes import PromotionRecipe, RollbackRecipe
from flows.reporting.events import tell_of_promotion
from flows.reporting.page import costing_the_page_alone
from flows.services.place_block import use_place_of_deployment
from flows.services.reconciliation import recorded_run
from flows.tasks import task_that_reaches_out
from pipelines.registry import promotion as registry
from pipelines.registry.promotion import Promotion

_PROMOTION, _ROLLBACK = PromotionRecipe(), RollbackRecipe()


@flow(
    name="promote",
    flow_run_name="{recipe.name}: {recipe.source} becomes {recipe.alias}",
    persist_result=False,
)
def promote(recipe: PromotionRecipe = _PROMOTION) -> Promotion:
    """Give an alias to the version that another alias or a number names."""
    use_place_of_deployment()
    recipe.place.refuse_unreachable_tracker()
    move = task_that_reaches_out(registry.promote).with_options(
        task_run_name=f"{recipe.alias} of {recipe.name}"
    )
    with recorded_run(flow_run.id):
        moved = move(
            recipe.place.tracker({}), recipe.name, recipe.source, recipe.alias,
            recipe.reason, recipe.who, overrules=recipe.force,
        )  # fmt: skip
    return _told(cast(Promotion, moved))  # a coroutine only where the task is one


@flow(
    name="rollback",
    flow_run_name="{recipe.name}: {recipe.alias} goes back",
    persist_result=False,
)
def rollback(recipe: RollbackRecipe = _ROLLBACK) -> Promotion:
    """Give an alias back to the version that had it before; no run of a recipe undoes that."""
    use_place_of_deployment()
    recipe.place.refuse_unreachable_tracker()
    move = task_that_reaches_out(registry.rollback).with_options(
        task_run_name=f"{recipe.alias} of {recipe.name} goes back"
    )
    with recorded_run(flow_run.id):
        moved = move(recipe.place.tracker({}), recipe.name, recipe.alias, recipe.reason, recipe.who)
    return _told(cast(Promotion, moved))


def _told(promotion: Promotion) -> Promotion:
    tell_of_promotion(promotion)
    before = f", before it was {promotion.previous_version}" if promotion.previous_version else ""
    with costing_the_page_alone(get_run_logger().warning):
        create_markdown_artifact(
            f"`{promotion.alias}` of **{promotion.name}** is now version {promotion.version}"
            f"{before}: {promotion.reason}.",
            key="promotion",
            description=f"{promotion.name}@{promotion.alias} is version {promotion.version}",
        )
    return promotion
