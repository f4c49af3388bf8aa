"""Flows of a person's own choice: give an alias to a version, or back to the one that had it."""

import logging
from typing import cast

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.events import emit_event
from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from flows.reporting.run_report import costing_the_page_alone
from flows.run import network_task
from flows.services.reconciliation import recorded_run
from flows.services.runtime_block import use_runtime_of_deployment
from pipelines.recipes.registration import PromotionRecipe, RollbackRecipe
from pipelines.registry import promotion as registry
from pipelines.registry.promotion import Promotion

logger = logging.getLogger(__name__)

PROMOTED = "bertsmith.model.promoted"  # an event that automations react to
_PROMOTION, _ROLLBACK = PromotionRecipe(), RollbackRecipe()


@flow(
    name="promote",
    flow_run_name="{recipe.name}: {recipe.source} becomes {recipe.alias}",
    persist_result=False,
)
def promote(recipe: PromotionRecipe = _PROMOTION) -> Promotion:
    """Give an alias to the version that another alias or a number names."""
    use_runtime_of_deployment()
    recipe.runtime.check_tracker_reachable()
    move = network_task(registry.promote).with_options(
        task_run_name=f"{recipe.alias} of {recipe.name}"
    )
    with recorded_run(flow_run.id):
        moved = move(
            recipe.runtime.tracker({}), recipe.name, recipe.source, recipe.alias,
            recipe.reason, recipe.who, overrules=recipe.force,
        )  # fmt: skip
    return _published(cast(Promotion, moved))  # a coroutine only where the task is one


@flow(
    name="rollback",
    flow_run_name="{recipe.name}: {recipe.alias} goes back",
    persist_result=False,
)
def rollback(recipe: RollbackRecipe = _ROLLBACK) -> Promotion:
    """Give an alias back to the version that had it before; no run of a recipe undoes that."""
    use_runtime_of_deployment()
    recipe.runtime.check_tracker_reachable()
    move = network_task(registry.rollback).with_options(
        task_run_name=f"{recipe.alias} of {recipe.name} goes back"
    )
    with recorded_run(flow_run.id):
        moved = move(
            recipe.runtime.tracker({}), recipe.name, recipe.alias, recipe.reason, recipe.who
        )
    return _published(cast(Promotion, moved))


def _published(promotion: Promotion) -> Promotion:
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
    """Emit an event that names model, version and alias; trouble with that stops nothing."""
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
    # The alias has moved: whatever keeps the event from its server, that is done.
    except Exception as error:  # noqa: BLE001
        logger.warning("the event for the promotion of %s was not sent: %s", promotion.name, error)
