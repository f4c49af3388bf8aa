"""The encoder that a recipe goes on from, looked up before anything is built."""

from typing import TypeVar

from flows.run import Run
from flows.tasks import task_that_reaches_out
from pipelines.core.recipes.ladder import CorpusRecipe
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker

RecipeType = TypeVar("RecipeType", bound=CorpusRecipe)


def with_settled_encoder(run: Run[RecipeType]) -> RecipeType:
    """The run's recipe with the fingerprint of every encoder that it names, in its place.

    Stages know the store and not the registry: what a name or a folder stands for now is taken
    into the store here. Raises UserError where there is no such encoder.
    """
    recipe, changed = run.recipe, {}
    settled: dict[str, str] = {}
    for section in ("vocabulary", "pretraining"):
        settings = getattr(recipe, section, None)
        if settings is not None and settings.encoder is not None:
            if settings.encoder not in settled:
                settled[settings.encoder] = run.stage(
                    "encoder to go on from", task_that_reaches_out(_settle),
                    settings.encoder, run.tracker, run.context,
                )  # fmt: skip
            changed[section] = settings.model_copy(update={"encoder": settled[settings.encoder]})
    return recipe.model_copy(update=changed)


def _settle(reference: str, tracker: Tracker, context: StageContext) -> str:
    from pipelines.registry.starting import settled_encoder  # torch takes a second

    return settled_encoder(reference, tracker, context).fingerprint
