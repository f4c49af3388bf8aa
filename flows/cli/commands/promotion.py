"""Commands that decide which version is the champion."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.registry import Home, explained, tracker_of
from flows.environment import home_folder, prepare_flows, set_defaults

Name = Annotated[str, typer.Argument(help="Registered name of the model.")]
Because = Annotated[str, typer.Option("--because", help="Why, for the history.")]


def promote(
    name: Name,
    version: Annotated[
        str, typer.Option("--version", help="The version: its number, or an alias it has now.")
    ] = "candidate",
    alias: Annotated[str, typer.Option("--to", help="The alias it is given.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias to a verified version, whatever its comparison says.

    Example: bertsmith promote bertsmith-encoder --version 3
    """
    _promote(name, version, alias, because, home)


def rollback(
    name: Name,
    alias: Annotated[str, typer.Option("--alias", help="The alias that goes back.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias back to the version before.

    Later runs of a recipe do not undo it.

    Example: bertsmith rollback bertsmith-classifier --because 'worse on short texts'
    """
    _promote(name, "previous", alias, because, home)


def _promote(name: str, source: str, alias: str, because: str, home: Path | None) -> None:
    """Run the flow, after mistakes are told and what speaks against the version is shown."""
    folder = home_folder(home)
    set_defaults(folder)
    from pipelines.recipes.registration import PromotionRecipe

    with explained("promote"):
        recipe = PromotionRecipe(name=name, source=source, alias=alias, reason=because)
    from pipelines.registry.find import COMPARISON_TAG
    from pipelines.registry.promote import PREVIOUS, promotion_by_choice

    tracker = tracker_of(home)
    chosen = promotion_by_choice(tracker, name, source, alias)
    tags = tracker.client().get_model_version(name, str(chosen.version)).tags
    compared = tags.get(f"{COMPARISON_TAG}.reason")
    if compared and source != PREVIOUS:
        print(f"On record: {compared}.")
    wait_for_api = prepare_flows(folder)
    from flows.promote import promote as flow

    wait_for_api()
    moved = flow(recipe)
    before = moved.previous_version
    print(
        f"{moved.name}@{moved.alias} is version {moved.version}"
        + (f", before it was {before}" if before and before != moved.version else "")
    )
