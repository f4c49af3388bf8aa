"""The chain as Prefect flows and tasks: one of each for every stage, derived from `CHAIN`."""

from collections.abc import Iterable
from functools import cache

from prefect import Flow, flow

from flows.checks import check_recipe
from flows.continuing import given_artifacts, with_settled_encoder
from flows.reporting.story import Story
from flows.run import Overrides, Run, started_run
from flows.stopped import cancel_if_stopped
from flows.tasks import plain_task, task_that_reaches_out
from pipelines.artifacts import Artifact
from pipelines.core.recipes.files import read_recipe
from pipelines.core.recipes.ladder import CorpusRecipe, narrowest_recipe
from pipelines.core.stage import Stage
from pipelines.stages import CHAIN, asked_for, with_what_they_need


def build_chain(run: Run[CorpusRecipe], goals: Iterable[Stage]) -> dict[str, Artifact]:
    """Build what is missing of `goals` and of what they need, in order; artifacts by stage name.

    What the recipe does not ask for is left out. Raises UserError, before anything is built, where
    an input cannot be read or the recipe cannot work: see `check_recipe`; and where something is
    trained on a cluster that does not reach the tracker.
    """
    goals = list(goals)
    check_recipe(run.recipe, goals)
    if any(stage.cut for stage in asked_for(run.recipe, goals)):
        run.recipe.place.refuse_strangers(trains=True)
    recipe = with_settled_encoder(run).resolved()
    made = given_artifacts(recipe, run.context)
    for stage in asked_for(recipe, goals):
        settings = stage.settings_of(recipe)
        as_task = task_that_reaches_out if stage.reaches_out else plain_task
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


@cache
def flow_of(command: str) -> Flow[..., Story]:
    """The flow that builds the stage of this command and what it needs.

    Raises KeyError where no stage has this command.
    """
    stage = {each.command: each for each in CHAIN}[command]
    sections = [each.section for each in with_what_they_need([stage]) if each.section]
    recipe_type = narrowest_recipe(sections)
    demo = read_recipe(recipe_type, "demo")

    def build(
        recipe: recipe_type = demo,  # type: ignore[valid-type]
        overrides: Overrides = (),
    ) -> Story:
        with started_run(stage.command, recipe, overrides, default=demo) as run:
            build_chain(run, [stage])
        return run.story

    build.__name__ = stage.command
    build.__doc__ = stage.purpose
    return flow(
        name=stage.command,
        flow_run_name=f"{stage.title} of {{recipe.name}}",
        persist_result=False,
        on_crashed=[cancel_if_stopped],
    )(build)


def __getattr__(name: str) -> Flow[..., Story]:
    """`flows.chain.<command>`, as deployments name a stage's flow; made when it is asked for."""
    try:
        return flow_of(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no flow {name!r}") from None
