"""Commands that show what there is to choose from: recipes and sizes."""

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
    app.command("sizes")(list_sizes)


def list_recipes() -> None:
    """Presets that come with Bertsmith, and what each is for.

    Example: bertsmith recipes list
    """
    from pipelines.core.recipes.files import preset_names

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {_purpose(name)}")


def show_recipe(
    recipe: Annotated[str, typer.Argument(help="A preset or a YAML file.")] = "demo",
    overrides: Overrides = None,
) -> None:
    """Print every value of a recipe as YAML: redirect it to a file to make one of your own.

    Example: bertsmith recipes show demo > mine.yaml
    """
    from pipelines.core.recipes.files import read_recipe
    from pipelines.core.recipes.ladder import EndToEndRecipe

    print(read_recipe(EndToEndRecipe, recipe, overrides or ()).to_yaml(), end="")


def list_sizes() -> None:
    """Named sizes of encoders and their parameters over the published vocabularies.

    Example: bertsmith sizes
    """
    from pipelines.insight.sizes import encoder_sizes

    sizes = encoder_sizes()
    columns = "".join(f"{vocabulary:>22}" for vocabulary in sizes[0].num_parameters)
    print(f"{'size':<8}{'layers x hidden':>16}{columns}")
    for size in sizes:
        shape = f"{size.num_layers} x {size.hidden_size}"
        counts = "".join(f"{count:>22,}" for count in size.num_parameters.values())
        print(f"{size.name:<8}{shape:>16}{counts}")
    print("Parameters of encoder and pooler; 1,000 pieces more are 1,000 x hidden more.")


def _purpose(preset: str) -> str:
    """The first paragraph of the comment that the preset's file opens with."""
    text = (files("pipelines.core.recipes") / "presets" / f"{preset}.yaml").read_text()
    comment = takewhile(lambda line: line.startswith("# "), text.splitlines())
    return " ".join(line.lstrip("# ") for line in comment)
