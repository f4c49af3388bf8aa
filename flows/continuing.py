"""The encoder that a recipe goes on from, looked up before anything is built."""

from typing import TypeVar

from flows.run import Run
from flows.tasks import task_that_reaches_out
from pipelines.artifacts import Artifact
from pipelines.core.recipes.ladder import CorpusRecipe, FinetuningRecipe, PretrainingRecipe
from pipelines.core.stage import StageContext
from pipelines.core.tracking.tracker import Tracker

RecipeType = TypeVar("RecipeType", bound=CorpusRecipe)


def with_settled_encoder(run: Run[RecipeType]) -> RecipeType:
    """The run's recipe with the fingerprint of every encoder that it names, in its place.

    Stages know the store and not the registry: what a name or a folder stands for now is taken
    into the store here, once in a run. Raises UserError where there is no such encoder, and where
    the one that pretraining goes on from cannot learn the objective of the examples.
    """
    recipe, changed = run.recipe, {}
    for section in ("pretraining", "vocabulary", "finetuning"):
        settings = getattr(recipe, section, None)
        if settings is None or settings.encoder is None:
            continue
        if settings.encoder not in run.encoders:
            run.encoders[settings.encoder] = run.stage(
                "encoder to start from", task_that_reaches_out(_settle),
                settings.encoder, run.tracker, run.context,
            )  # fmt: skip
        fingerprint = run.encoders[settings.encoder]
        changed[section] = settings.model_copy(update={"encoder": fingerprint})
    if isinstance(recipe, PretrainingRecipe) and "pretraining" in changed and not recipe.given:
        _refuse_other_objective(recipe, changed["pretraining"].encoder, run.context)
    return recipe.model_copy(update=changed)


def given_artifacts(recipe: CorpusRecipe, context: StageContext) -> dict[str, Artifact]:
    """What stands in the place of stages that the recipe leaves out, by their names.

    `recipe` names encoders by their fingerprints, as `with_settled_encoder` gives it.
    """
    if not isinstance(recipe, FinetuningRecipe) or recipe.finetuning.encoder is None:
        return {}
    from pipelines.training.starting import starting_encoder

    return {"pretraining": starting_encoder(recipe.finetuning.encoder, context)}


def _settle(reference: str, tracker: Tracker, context: StageContext) -> str:
    from pipelines.registry.opening import settled_encoder  # torch takes a second

    return settled_encoder(reference, tracker, context).fingerprint


def _refuse_other_objective(
    recipe: PretrainingRecipe, fingerprint: str, context: StageContext
) -> None:
    from pipelines.stages.pretraining.continuing import refuse_other_objective
    from pipelines.training.starting import starting_encoder

    refuse_other_objective(recipe.examples, starting_encoder(fingerprint, context))
