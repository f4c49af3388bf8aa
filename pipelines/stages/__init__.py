"""The chain: every stage in its order. Flows, commands, deployments and reports derive from it."""

from collections.abc import Iterable
from typing import Any

from pipelines.config.errors import UserError
from pipelines.config.settings import Settings
from pipelines.stage import Stage
from pipelines.stages.corpus import CORPUS
from pipelines.stages.dataset import DATASET
from pipelines.stages.evaluation import EVALUATION
from pipelines.stages.examples import EXAMPLES
from pipelines.stages.finetuning import FINETUNING
from pipelines.stages.pretraining import PRETRAINING
from pipelines.stages.vocabulary import VOCABULARY
from pipelines.training.placement import check_ranks

CHAIN = (CORPUS, VOCABULARY, EXAMPLES, PRETRAINING, DATASET, FINETUNING, EVALUATION)
STAGES = {stage.kind: stage for stage in CHAIN}  # by the kind of the artifacts that each makes


def with_what_they_need(goals: Iterable[Stage]) -> tuple[Stage, ...]:
    """`goals` and every stage whose artifacts they are made from, in the chain's order."""
    wanted: set[str] = set()
    for stage in reversed(CHAIN):
        if stage in goals or stage.name in wanted:
            wanted.update((stage.name, *stage.needs))
    return tuple(stage for stage in CHAIN if stage.name in wanted)


def asked_for(recipe: Settings, goals: Iterable[Stage]) -> tuple[Stage, ...]:
    """What `recipe` asks for of `goals` and of what they need, in the chain's order.

    A stage that its settings leave out is missing, and so is what needs it; what the recipe gives
    is neither built nor missing.
    """
    stages: list[Stage] = []
    given: frozenset[str] = getattr(recipe, "given", frozenset())
    names = set(given)
    for stage in with_what_they_need(goals):
        if stage.name in given:
            continue
        if stage.is_wanted(stage.settings_of(recipe)) and names >= set(stage.needs):
            stages.append(stage)
            names.add(stage.name)
    return tuple(stages)


def check_recipe(recipe: Any, goals: Iterable[Stage]) -> None:
    """Return where `goals` can be made as `recipe` says, as far as can be known now.

    Raises UserError where an input that it names cannot be read or cannot be enough, where it asks
    for none of the goals, for what cannot follow examples for a left-to-right encoder, and for more
    training workers than a step has micro-batches.
    """
    goals = list(goals)
    names = {stage.name for stage in with_what_they_need(goals)}
    # A classifier reads the first token, and to the left of that there is nothing.
    is_given = bool(getattr(recipe, "given", ()))
    if "finetuning" in names and not is_given and EXAMPLES.settings_of(recipe).objective == "clm":
        raise UserError(
            "a left-to-right encoder (examples.objective=clm) can be pretrained with `bertsmith "
            "pretrain`, but not fine-tuned or registered yet; choose mlm or mlm_nsp"
        )
    wanted = asked_for(recipe, goals)
    for stage in wanted:
        cut = stage.cut_of(recipe)
        if cut is not None:
            check_ranks(recipe.runtime, cut)
    if not set(goals) & set(wanted):
        raise UserError(
            f"{goals[-1].title} needs labelled texts, and the recipe's are of kind 'none'; name "
            "some with --labels or in the recipe"
        )
    found: dict[str, Any] = {}
    for stage in wanted:
        found[stage.name] = stage.inspected(recipe, found)
