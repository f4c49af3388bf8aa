"""Commands by which a person decides which version people use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import Home
from flows.environment import home_folder
from pipelines.core.errors import UserError

if TYPE_CHECKING:
    from pipelines.registry.promotion import Promotion

Name = Annotated[str, typer.Argument(help="Registered name of the model.")]
Because = Annotated[str, typer.Option("--because", help="Why, for the history.")]
_CANDIDATE = "candidate"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command()(promote)
    app.command()(rollback)


def promote(
    name: Name,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="The version's number.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The version: an alias it has now, or its number. [default: candidate]",
            show_default=False,
        ),
    ] = None,
    alias: Annotated[str, typer.Option("--to", help="The alias it is given.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias to a version that proved itself, whatever a comparison said.

    Example: bertsmith promote bertsmith-encoder --version 3
    """
    if version is not None and source is not None:
        raise UserError(
            "the version must be named once, found --version and --from; leave out one of them"
        )
    named = source if version is None else str(version)
    values = {"name": name, "source": named or _CANDIDATE, "alias": alias, "reason": because}
    _tell(_moved("promote", home, values), home)


def rollback(
    name: Name,
    alias: Annotated[str, typer.Option("--alias", help="The alias that goes back.")] = "champion",
    because: Because = "",
    home: Home = None,
) -> None:
    """Give an alias back to the version that had it before; no run of a recipe undoes that.

    Example: bertsmith rollback bertsmith-classifier --because 'worse on short texts'
    """
    _tell(_moved("rollback", home, {"name": name, "alias": alias, "reason": because}), home)


def _moved(flow: str, home: Any, values: dict[str, Any]) -> "Promotion":
    """What the flow of this name does with a recipe of these values."""
    from flows.environment import prepare_flows

    surroundings = prepare_flows(home_folder(home))
    from pydantic import ValidationError

    from flows import promote as flows
    from pipelines.core.recipes.files import explain

    recipe_type = {"promote": flows.PromotionRecipe, "rollback": flows.RollbackRecipe}[flow]
    try:
        recipe = recipe_type(**values)
    except ValidationError as error:
        raise UserError(explain(error, flow)) from None
    if surroundings.local_api is not None:
        surroundings.local_api.wait()
    moved: Promotion = getattr(flows, flow)(recipe)
    return moved


def _tell(promotion: "Promotion", home: Path | None) -> None:
    from flows.cli.first_answers import find_first_answers

    before = promotion.previous_version
    print(
        f"{promotion.name}@{promotion.alias} is version {promotion.version}"
        + (f", before it was {before}" if before and before != promotion.version else "")
    )
    find_first_answers(home, [promotion.name])
