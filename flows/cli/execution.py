"""Run one flow for a person at a terminal: recipe first, progress while it runs, summary last."""

import time
from typing import TYPE_CHECKING, Any

from flows.cli.choice import Choice
from flows.environment import home_folder, prepare_flows, set_defaults
from flows.stopping import stop_in_order

if TYPE_CHECKING:
    from pipelines.recipes.models import CorpusRecipe

END_TO_END = "run"


def execute(command: str, choice: Choice, *, show_recipe: bool) -> None:
    """Run the flow of `command` with the recipe that `choice` describes; with `show_recipe` print
    that, every value of it, and run nothing.

    Raises UserError for a recipe, a runtime setting or an input that cannot work, before
    anything starts.
    """
    stop_in_order()
    home = home_folder(choice.home)
    set_defaults(home)
    recipe = checked_recipe(command, choice)
    if show_recipe:
        print(long_form(recipe), end="")
        return
    print(short_form(recipe), flush=True)

    surroundings = prepare_flows(home)  # it comes up while the imports below go on
    flow = _flow_of(command)

    from psutil import Process

    from flows.reporting.progress_line import progress_on_terminal
    from flows.reporting.publishing import print_report
    from pipelines.cluster.connection import disconnect

    if surroundings.local_api is not None:
        surroundings.local_api.wait()
    try:
        with progress_on_terminal():
            report = flow(recipe)
    finally:
        disconnect()
    report.seconds = time.time() - Process().create_time()  # the whole command's, as `time` says it
    tracking_uri = recipe.runtime.tracker({}).shown_uri
    print_report(report, tracking_uri, services_run=surroundings.services is not None)


def checked_recipe(command: str, choice: Choice) -> "CorpusRecipe":
    """The recipe for `command`, whose inputs can be read.

    Raises UserError where a value, a runtime setting or an input that the recipe names cannot work.
    """
    from flows.checks import check_recipe
    from pipelines.recipes.files import read_recipe
    from pipelines.recipes.models import EndToEndRecipe, narrowest_recipe
    from pipelines.stages import CHAIN, with_what_they_need

    goals = [stage for stage in CHAIN if command in (END_TO_END, stage.command)]
    sections = {stage.section for stage in with_what_they_need(goals) if stage.section}
    recipe_type = EndToEndRecipe if command == END_TO_END else narrowest_recipe(sections)
    recipe = read_recipe(recipe_type, choice.source, choice.all_overrides())
    recipe.runtime.check_reachable()
    check_recipe(recipe, goals)
    return recipe


def _flow_of(command: str) -> Any:
    if command == END_TO_END:
        from flows.end_to_end import end_to_end

        return end_to_end
    from flows.chain import flow_of

    return flow_of(command)


def long_form(recipe: "CorpusRecipe") -> str:
    """The recipe with every value, with its automatic rates where they are known."""
    from pipelines.artifacts import ArtifactStore
    from pipelines.registry.opening import automatic_rates_note
    from pipelines.stage import StageContext

    context = StageContext(store=ArtifactStore(recipe.runtime.store_url()))  # makes no home
    notes = automatic_rates_note(recipe, context)
    return "".join([recipe.to_yaml(), *(f"# {note}\n" for note in notes)])


def short_form(recipe: "CorpusRecipe") -> str:
    """The recipe's name and what it sets other than the defaults, a line for each section."""
    import yaml

    from pipelines.recipes.files import differences

    lines = [f"Recipe {recipe.name} (bertsmith recipes show prints every value)"]
    usual = type(recipe)().model_dump(mode="json")
    for section, values in recipe.model_dump(mode="json").items():
        if not isinstance(values, dict):
            continue
        changed = {path: value for path, value, _ in differences(values, usual[section])}
        if changed:
            text = yaml.safe_dump(changed, default_flow_style=True, width=10_000, sort_keys=False)
            lines.append(f"  {section:<12} {text.strip()[1:-1]}")
    return "\n".join(lines)
