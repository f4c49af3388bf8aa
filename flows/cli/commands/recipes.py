"""Commands that show what there is to choose from: recipes and sizes."""

from importlib.resources import files
from itertools import takewhile
from typing import Annotated

import typer

from flows.cli.registry import Overrides

commands = typer.Typer(help="List and print recipes and encoder sizes.", no_args_is_help=True)


@commands.command("list")
def list_recipes() -> None:
    """List the presets that come with Bertsmith, and what each is for.

    Example: bertsmith recipes list
    """
    from pipelines.recipes.files import preset_names

    names = preset_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {_purpose(name)}")


@commands.command("show")
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


@commands.command()
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
