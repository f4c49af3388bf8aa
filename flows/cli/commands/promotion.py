"""Commands that decide which version is the champion."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.registry import Home, explained, tracker_of
from flows.environment import home_folder, prepare_flows, set_defaults

if TYPE_CHECKING:
    from pipelines.registry.promote import Promotion

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
    values = {"name": name, "source": version, "alias": alias, "reason": because}
    recipe = _recipe("PromotionRecipe", values, home)
    from pipelines.registry.find import COMPARISON_TAG
    from pipelines.registry.promote import promotion_by_choice

    # What speaks against it, and mistakes, before a flow starts.
    tracker = tracker_of(home)
    chosen = promotion_by_choice(tracker, name, recipe.source, alias)
    tags = tracker.client().get_model_version(name, str(chosen.version)).tags
    if compared := tags.get(f"{COMPARISON_TAG}.reason"):
        print(f"On record: {compared}.")
    _tell(_run("promote", recipe, home))


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
    recipe = _recipe("RollbackRecipe", {"name": name, "alias": alias, "reason": because}, home)
    from pipelines.registry.promote import rollback as decide

    decide(tracker_of(home), name, alias)  # a mistake ends here, before a flow starts
    _tell(_run("rollback", recipe, home))


def _recipe(name: str, values: dict[str, Any], home: Path | None) -> Any:
    """The recipe of these values; raises UserError if they are not valid."""
    set_defaults(home_folder(home))
    from pipelines.recipes import registration

    with explained(name.removesuffix("Recipe").lower()):
        return getattr(registration, name)(**values)


def _run(flow: str, recipe: Any, home: Path | None) -> "Promotion":
    """Run the flow of this name with `recipe`."""
    wait_for_api = prepare_flows(home_folder(home))
    from flows import promote as flows

    wait_for_api()
    moved: Promotion = getattr(flows, flow)(recipe)
    return moved


def _tell(promotion: "Promotion") -> None:
    before = promotion.previous_version
    print(
        f"{promotion.name}@{promotion.alias} is version {promotion.version}"
        + (f", before it was {before}" if before and before != promotion.version else "")
    )
