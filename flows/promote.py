"""Flow: give an alias to a version that proved itself."""

from typing import cast

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run
from pydantic import Field

from flows.reporting.events import tell_of_promotion
from flows.services.platform.place_block import use_place_of_deployment
from flows.services.run_records import recorded_run
from flows.tasks import task_that_reaches_out
from pipelines.core.place import PlaceSettings
from pipelines.core.settings import Settings
from pipelines.registry import promotion as registry
from pipelines.registry.promotion import Promotion
from pipelines.registry.settings import Alias


class PromotionRecipe(Settings):
    """Which version of a registered model gets which alias."""

    place: PlaceSettings = Field(
        default_factory=PlaceSettings, description="Where the registry is."
    )
    name: str = Field(
        default="bertsmith-encoder", min_length=1, description="Registered name of the model."
    )
    source: str = Field(
        default="candidate",
        min_length=1,
        description="The version to promote: an alias it has now, or its number.",
    )
    alias: Alias = Field(default="champion", description="The alias that the version is given.")


_DEFAULT = PromotionRecipe()


@flow(
    name="promote",
    flow_run_name="{recipe.name}: {recipe.source} becomes {recipe.alias}",
    persist_result=False,
)
def promote(recipe: PromotionRecipe = _DEFAULT) -> Promotion:
    """Give an alias to the version that another alias or a number names."""
    use_place_of_deployment()
    recipe.place.refuse_unreachable_tracker()
    move = task_that_reaches_out(registry.promote).with_options(
        task_run_name=f"{recipe.alias} of {recipe.name}"
    )
    with recorded_run(flow_run.id):
        moved = move(recipe.place.tracker({}), recipe.name, recipe.source, recipe.alias)
    promotion = cast(Promotion, moved)  # a coroutine only where the task is one
    tell_of_promotion(promotion)
    create_markdown_artifact(
        f"`{promotion.alias}` of **{promotion.name}** is now version {promotion.version}"
        + (f", before it was {promotion.previous_version}." if promotion.previous_version else "."),
        key="promotion",
        description=f"{promotion.name}@{promotion.alias} is version {promotion.version}",
    )
    return promotion
