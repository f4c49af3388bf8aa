"""Commands that run a flow: the whole chain, and each stage alone; and the recipes to run."""

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.choice import Choice, choosing
from flows.cli.registry import Overrides
from flows.environment import home_folder, prepare_flows, set_defaults
from flows.stopping import stop_in_order
from pipelines.config.errors import UserError
from pipelines.stage import Stage
from pipelines.stages import (
    CHAIN,
    DATASET,
    EVALUATION,
    PRETRAINING,
    check_recipe,
    with_what_they_need,
)

if TYPE_CHECKING:
    from pipelines.recipes.models import CorpusRecipe

END_TO_END = "run"
_STAGES = tuple(stage.command for stage in CHAIN)
_OF_LABELS = (
    "labels", "heldout", "task", "text_column", "second_text_column", "label_column", "seeds",
    "search",
)  # fmt: skip

ShowRecipe = Annotated[
    bool,
    typer.Option("--show-recipe", help="Print every value of the recipe as YAML and run nothing."),
]
Until = Annotated[
    str | None,
    typer.Option(
        metavar="STAGE",
        help=f"Stop after this stage: {', '.join(_STAGES)}.",
        autocompletion=lambda incomplete: [n for n in _STAGES if n.startswith(incomplete)],
    ),
]

recipes = typer.Typer(help="List and print recipes and encoder sizes.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add `run`, a command for each stage, and `recipes` to the application."""
    app.command(END_TO_END)(run)
    for stage in CHAIN:
        if stage is not EVALUATION:  # its command takes registered models, too: `evaluation.py`
            app.command(stage.command)(_command(stage))
    app.add_typer(recipes, name="recipes")


@choosing()
def run(choice: Choice, until: Until = None, show_recipe: ShowRecipe = False) -> None:
    """Build everything, from raw text to registered models.

    What exists already is reused, and interrupted work is resumed. Each model is verified: loaded
    in a new process, it has to reproduce its held-out score.

    Example: bertsmith run --corpus 'texts/*.txt' --labels reviews.csv --label-column stars
    """
    if until is not None and until not in _STAGES:
        raise UserError(f"--until {until}: no such stage; choose one of {', '.join(_STAGES)}")
    execute(until or END_TO_END, choice, show_recipe=show_recipe)


def _command(stage: Stage) -> Callable[..., None]:
    def build(choice: Choice, show_recipe: ShowRecipe = False) -> None:
        execute(stage.command, choice, show_recipe=show_recipe)

    build.__doc__ = (
        f"{stage.purpose}\n\nWhat exists already is reused, and interrupted work is resumed.\n\n"
        f"Example: {stage.example}"
    )
    if DATASET in with_what_they_need([stage]):
        return choosing()(build)
    return choosing(*_OF_LABELS, *(() if stage is PRETRAINING else ("encoder",)))(build)


def execute(command: str, choice: Choice, *, show_recipe: bool) -> None:
    """Run the flow of `command` with the chosen recipe; with `show_recipe` only print the recipe.

    Raises UserError for a recipe, a runtime setting or an input that cannot work, before
    anything starts.
    """
    stop_in_order()
    home = home_folder(choice.home)
    services = set_defaults(home)
    choice = replace(choice, is_pretraining=command == PRETRAINING.command)
    recipe = checked_recipe(command, choice)
    if show_recipe:
        print(long_form(recipe), end="")
        return
    print(short_form(recipe), flush=True)

    wait_for_api = prepare_flows(home)  # it starts up during the imports below
    flow = _flow_of(command)

    from psutil import Process

    from flows.reporting.progress_line import progress_on_terminal
    from flows.reporting.publishing import print_report
    from pipelines.cluster.connection import disconnect
    from pipelines.recipes.connections import open_tracker

    wait_for_api()
    try:
        with progress_on_terminal():
            report = flow(recipe)
    finally:
        disconnect()
    # Of the whole command, as `time` measures it.
    report.seconds = time.time() - Process().create_time()
    tracking_uri = open_tracker(recipe.runtime).shown_uri
    print_report(report, tracking_uri, services_run=services is not None)


def checked_recipe(command: str, choice: Choice) -> "CorpusRecipe":
    """The recipe for `command`, checked.

    Raises UserError for a value, a runtime setting or an input that cannot work.
    """
    from pipelines.recipes.connections import check_store_and_tracker
    from pipelines.recipes.files import read_recipe
    from pipelines.recipes.models import EndToEndRecipe, narrowest_recipe

    goals = [stage for stage in CHAIN if command in (END_TO_END, stage.command)]
    sections = {stage.section for stage in with_what_they_need(goals) if stage.section}
    recipe_type = EndToEndRecipe if command == END_TO_END else narrowest_recipe(sections)
    recipe = read_recipe(recipe_type, choice.source, choice.all_overrides())
    check_store_and_tracker(recipe.runtime)
    check_recipe(recipe, goals)
    return recipe


def _flow_of(command: str) -> Any:
    if command == END_TO_END:
        from flows.end_to_end import end_to_end

        return end_to_end
    from flows.chain import flow_of

    return flow_of(command)


def long_form(recipe: "CorpusRecipe") -> str:
    """Every value of the recipe as YAML, and its automatic learning rates if they are known."""
    from pipelines.artifacts import ArtifactStore
    from pipelines.insight.sizes import automatic_rates_note
    from pipelines.stage import StageContext

    context = StageContext(store=ArtifactStore(recipe.runtime.store_url()))  # makes no home
    notes = automatic_rates_note(recipe, context)
    return "".join([recipe.to_yaml(), *(f"# {note}\n" for note in notes)])


def short_form(recipe: "CorpusRecipe") -> str:
    """The recipe's name and what differs from the defaults, a line for each section."""
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


@recipes.command("list")
def list_recipes() -> None:
    """List the presets that come with Bertsmith, and what each is for.

    Example: bertsmith recipes list
    """
    from pipelines.recipes.files import preset_names

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {_purpose(name)}")


@recipes.command("show")
def show_recipe(
    recipe: Annotated[str, typer.Argument(help="A preset or a YAML file.")] = "demo",
    overrides: Overrides = None,
) -> None:
    """Print every value of a recipe as YAML: redirect it to a file to make one of your own.

    Example: bertsmith recipes show demo > mine.yaml
    """
    from pipelines.recipes.files import read_recipe
    from pipelines.recipes.models import EndToEndRecipe

    print(read_recipe(EndToEndRecipe, recipe, overrides or ()).to_yaml(), end="")


@recipes.command()
def sizes() -> None:
    """List the named encoder sizes and their parameters over the published vocabularies.

    Example: bertsmith recipes sizes
    """
    from pipelines.insight.sizes import encoder_sizes

    found = encoder_sizes()
    columns = "".join(f"{vocabulary:>22}" for vocabulary in found[0].num_parameters)
    print(f"{'size':<8}{'layers x hidden':>16}{columns}")
    for size in found:
        shape = f"{size.num_layers} x {size.hidden_size}"
        counts = "".join(f"{count:>22,}" for count in size.num_parameters.values())
        print(f"{size.name:<8}{shape:>16}{counts}")
    print("Parameters of encoder and pooler; 1,000 more tokens add 1,000 x hidden.")


def _purpose(preset: str) -> str:
    """The first paragraph of the comment that the preset's file opens with."""
    text = (files("pipelines.recipes") / "presets" / f"{preset}.yaml").read_text()
    comment = takewhile(lambda line: line.startswith("# "), text.splitlines())
    return " ".join(line.lstrip("# ") for line in comment)
