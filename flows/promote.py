"""Promotion: by a run, after a comparison, and by a person, with the flow promote."""

from typing import Final, cast

from prefect import flow

from flows.run import Run, network_task
from flows.stopping import flow_in_progress
from pipelines.errors import UserError
from pipelines.recipes.recipe import PromotionRecipe
from pipelines.registry import promote as registry
from pipelines.registry.compare import compare_versions
from pipelines.registry.promote import OvertakenError, Promotion
from pipelines.registry.prove import Evaluation
from pipelines.registry.register import RegisteredModel
from pipelines.stage import check_tracker, open_tracker
from pipelines.tracking.tracker import Tracker

_PROMOTION = PromotionRecipe()
_MOST_COMPARISONS: Final = 3

_decide_promotion = network_task(registry.decide_promotion)
_move_alias = network_task(registry.move_alias)


@flow(
    name="promote",
    flow_run_name="{recipe.name}: {recipe.source} becomes {recipe.alias}",
    persist_result=False,
)
def promote(recipe: PromotionRecipe = _PROMOTION) -> Promotion:
    """Give an alias to the version that another alias or a number names, or to the one that had it
    before: no run of a recipe undoes that."""
    check_tracker(recipe.runtime)
    tracker = open_tracker(recipe.runtime)
    with flow_in_progress():
        decision = _decide_promotion(
            tracker, recipe.name, recipe.source, recipe.alias, recipe.reason
        )
        return cast(Promotion, _move_alias(tracker, decision))


def compare_and_promote(run: Run, model: RegisteredModel, evaluation: Evaluation | None) -> None:
    """Compare a verified version with the champion, and promote it if it is better.

    `evaluation` is that of its verification. Comparison and promotion go into the run's report.
    Where the alias moved since the comparison, by another run or a person, it is made again; that
    of a model that a person rolled back says so. Raises UserError where it moves each time.
    """
    names = run.recipe.registration
    for _ in range(_MOST_COMPARISONS):
        comparison = run.stage(
            f"comparison, {model.kind}", compare_versions,
            run.tracker, run.context.store, model.name, model.version, names.alias,
            names.comparison, evaluation,
        )  # fmt: skip
        run.report.comparisons.append(comparison)
        if not comparison.is_better:
            return
        decision = Promotion(
            name=model.name,
            alias=names.alias,
            version=model.version,
            previous_version=comparison.champion,
            reason=comparison.reason,
            is_of_run=True,
        )
        promoted = run.stage(
            f"promotion, {model.kind}", _moved_unless_overtaken, run.tracker, decision
        )
        if promoted is not None:
            run.report.promotions.append(promoted)
            return
    raise UserError(
        f"{model.name}@{names.alias} moved during each of {_MOST_COMPARISONS} comparisons with "
        f"{model.uri}, which stays as it is; run the recipe again"
    )


def _moved_unless_overtaken(tracker: Tracker, decision: Promotion) -> Promotion | None:
    try:
        return registry.move_alias(tracker, decision)
    except OvertakenError:
        return None
