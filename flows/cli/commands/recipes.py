"""Commands that list and print recipes."""

from itertools import takewhile
from typing import Annotated

import typer

from flows.cli.registry import Overrides

recipes = typer.Typer(help="List and print recipes.", no_args_is_help=True)


@recipes.command("list")
def list_recipes() -> None:
    """List the presets that come with Bertsmith, and what each is for.

    Example: bertsmith recipes list
    """
    from pipelines.recipes.files import preset_names, preset_text

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        # A preset's file opens with a comment, whose first paragraph is its purpose.
        comment = takewhile(lambda line: line.startswith("# "), preset_text(name).splitlines())
        print(f"{name:<{width}}  {' '.join(line.lstrip('# ') for line in comment)}")


@recipes.command("show")
def show_recipe(
    recipe: Annotated[str, typer.Argument(help="A preset or a YAML file.")] = "demo",
    overrides: Overrides = None,
) -> None:
    """Print every value of a recipe as YAML: redirect it to a file to make one of your own.

    Example: bertsmith recipes show demo > mine.yaml
    """
    from pipelines.recipes.files import read_recipe

    print(read_recipe(recipe, overrides or ()).to_yaml(), end="")
