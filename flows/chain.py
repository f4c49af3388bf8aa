"""The chain as Prefect flows and tasks: one of each for every stage, derived from `CHAIN`."""

from collections.abc import Iterable
from functools import cache

from prefect import Flow, flow

from flows.reporting.run_report import RunReport
from flows.run import Overrides, RecipeType, Run, network_task, plain_task, started_run
from flows.stopping import cancel_if_stopped
from pipelines.artifacts import Artifact
from pipelines.recipes.connections import check_nodes
from pipelines.recipes.files import read_recipe
from pipelines.recipes.models import (
    CorpusRecipe,
    FinetuningRecipe,
    PretrainingRecipe,
    narrowest_recipe,
)
from pipelines.stage import Stage, StageContext
from pipelines.stages import CHAIN, asked_for, check_recipe, with_what_they_need
from pipelines.tracking.tracker import Tracker


def build_chain(run: Run[CorpusRecipe], goals: Iterable[Stage]) -> dict[str, Artifact]:
    """Build what is missing of `goals` and of what they need, in order; artifacts by stage name.

    Stages that the recipe does not need are left out. Raises UserError, before anything is built,
    if `check_recipe` finds a fault or the cluster's nodes cannot reach the tracker.
    """
    goals = list(goals)
    check_recipe(run.recipe, goals)
    if any(stage.cut for stage in asked_for(run.recipe, goals)):
        check_nodes(run.recipe.runtime, trains=True)
    recipe = with_resolved_encoders(run).resolved()
    made = given_artifacts(recipe, run.context)
    for stage in asked_for(recipe, goals):
        settings = stage.settings_of(recipe)
        as_task = network_task if stage.uses_network else plain_task
        build = as_task(stage.builder())
        inputs = [made.get(name) for name in stage.needs]
        arguments = [settings, *inputs] if stage.section else inputs
        variants = stage.variants(settings)
        made[stage.name] = run.stage(
            stage.title, build, *arguments, run.context, to_follow=len(variants)
        )
        for left, (title, options) in zip(
            reversed(range(len(variants))), variants.items(), strict=True
        ):
            run.stage(title, build, *arguments, run.context, to_follow=left, **options)
    return made


def with_resolved_encoders(run: Run[RecipeType]) -> RecipeType:
    """The run's recipe with a fingerprint in place of every encoder that it names.

    Stages know the store, not the registry: what a name or a folder refers to is imported into the
    store here, once per run. Raises UserError if there is no such encoder, or if pretraining would
    continue from one that cannot learn the objective of the examples.
    """
    recipe, changed = run.recipe, {}
    for section in ("pretraining", "vocabulary", "finetuning"):
        settings = getattr(recipe, section, None)
        if settings is None or settings.encoder is None:
            continue
        if settings.encoder not in run.encoders:
            run.encoders[settings.encoder] = run.stage(
                "encoder to start from", network_task(_resolve),
                settings.encoder, run.tracker, run.context,
            )  # fmt: skip
        fingerprint = run.encoders[settings.encoder]
        changed[section] = settings.model_copy(update={"encoder": fingerprint})
    if isinstance(recipe, PretrainingRecipe) and "pretraining" in changed and not recipe.given:
        from pipelines.stages.pretraining.continuing import check_objective
        from pipelines.training.imported_models import existing_encoder

        encoder = existing_encoder(changed["pretraining"].encoder, run.context)
        check_objective(recipe.examples, encoder)
    return recipe.model_copy(update=changed)


def given_artifacts(recipe: CorpusRecipe, context: StageContext) -> dict[str, Artifact]:
    """The artifacts that replace stages which a recipe with resolved encoders leaves out."""
    if not isinstance(recipe, FinetuningRecipe) or recipe.finetuning.encoder is None:
        return {}
    from pipelines.training.imported_models import existing_encoder

    return {"pretraining": existing_encoder(recipe.finetuning.encoder, context)}


def _resolve(reference: str, tracker: Tracker, context: StageContext) -> str:
    from pipelines.registry.opening import resolved_encoder  # torch takes a second

    return resolved_encoder(reference, tracker, context).fingerprint


@cache
def flow_of(command: str) -> Flow[..., RunReport]:
    """The flow that builds the stage of this command and what it needs.

    Raises KeyError if no stage has this command.
    """
    stage = {each.command: each for each in CHAIN}[command]
    sections = [each.section for each in with_what_they_need([stage]) if each.section]
    recipe_type = narrowest_recipe(sections)
    demo = read_recipe(recipe_type, "demo")

    def build(
        recipe: recipe_type = demo,  # type: ignore[valid-type]
        overrides: Overrides = (),
    ) -> RunReport:
        with started_run(stage.command, recipe, overrides, default=demo) as run:
            build_chain(run, [stage])
        return run.report

    build.__name__ = stage.command
    build.__doc__ = stage.purpose
    return flow(
        name=stage.command,
        flow_run_name=f"{stage.title} of {{recipe.name}}",
        persist_result=False,
        on_crashed=[cancel_if_stopped],
    )(build)


def __getattr__(name: str) -> Flow[..., RunReport]:
    """`flows.chain.<command>`, as deployments name a stage's flow; created on first use."""
    try:
        return flow_of(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no flow {name!r}") from None
