"""Commands that show recipes."""

from importlib.resources import files
from itertools import takewhile
from typing import Annotated

import typer

from flows.cli.options import Overrides


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    group = typer.Typer(help="List and print recipes.", no_args_is_help=True)
    group.command("list")(list_recipes)
    group.command("show")(show_recipe)
    app.add_typer(group, name="recipes")


def list_recipes() -> None:
    """Presets that come with Bertsmith, and what each is for.

    Example: bertsmith recipes list
    """
    from pipelines.recipes import preset_names

    for name in preset_names():
        print(f"{name:<12} {_purpose(name)}")


def show_recipe(
    recipe: Annotated[str, typer.Argument(help="A preset or a YAML file.")] = "demo",
    overrides: Overrides = None,
) -> None:
    """Print every value of a recipe as YAML: redirect it to a file to make one of your own.

    Example: bertsmith recipes show demo > mine.yaml
    """
    from pipelines.recipes import EndToEndRecipe, read_recipe

    print(read_recipe(EndToEndRecipe, recipe, overrides or ()).to_yaml(), end="")


def _purpose(preset: str) -> str:
    """The comment that the preset's file opens with."""
    text = (files("pipelines") / "presets" / f"{preset}.yaml").read_text()
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.lstrip("# ") for line in comment)
