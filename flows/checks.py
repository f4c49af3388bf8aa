"""What is looked at before anything is built: the recipe as a whole, and its inputs."""

from collections.abc import Iterable

from pipelines.config.errors import UserError
from pipelines.recipes.models import CorpusRecipe
from pipelines.stage import Stage
from pipelines.stages import asked_for, look_at_inputs, with_what_they_need
from pipelines.stages.examples import EXAMPLES
from pipelines.training.placement import check_ranks


def check_recipe(recipe: CorpusRecipe, goals: Iterable[Stage]) -> None:
    """Return where `goals` can be made as `recipe` says, as far as can be known now.

    Raises UserError where an input that it names cannot be read, where it asks for none of the
    goals, for what cannot follow examples for a left-to-right encoder, and for more training
    workers than a step has micro-batches.
    """
    goals = list(goals)
    names = {stage.name for stage in with_what_they_need(goals)}
    # A classifier reads the first token, and to the left of that there is nothing.
    is_given = bool(getattr(recipe, "given", ()))
    if "finetuning" in names and not is_given and EXAMPLES.settings_of(recipe).objective == "clm":
        raise UserError(
            "examples.objective must be mlm or mlm_nsp for what follows pretraining, found clm; a "
            "left-to-right encoder can be pretrained with `bertsmith pretrain`, but not fine-tuned "
            "or registered yet"
        )
    for stage in asked_for(recipe, goals):
        cut = stage.cut_of(recipe)
        if cut is not None:
            check_ranks(recipe.runtime.ranks(), cut)
    look_at_inputs(recipe, goals)
