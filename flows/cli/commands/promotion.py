"""Commands that decide which version is the champion."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.registry import Home, explained, tracker_of
from flows.environment import home_folder, prepare_flows, set_defaults
from pipelines.config.errors import UserError

if TYPE_CHECKING:
    from pipelines.registry.promotion import Promotion

Name = Annotated[str, typer.Argument(help="Registered name of the model.")]
Because = Annotated[str, typer.Option("--because", help="Why, for the history.")]
_CANDIDATE = "candidate"


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
    force: Annotated[
        bool,
        typer.Option("--force", help="Promote it even if the comparison says it is worse."),
    ] = False,
    home: Home = None,
) -> None:
    """Give an alias to a verified version.

    If it is worse than the version that has the alias now, you are asked first.

    Example: bertsmith promote bertsmith-encoder --version 3
    """
    if version is not None and source is not None:
        raise UserError("--version and --from both name the version; leave out one of them")
    named = source if version is None else str(version)
    values = {"name": name, "source": named or _CANDIDATE, "alias": alias, "reason": because}
    recipe = _recipe("PromotionRecipe", values, home)
    from pipelines.registry.person_choice import (
        baselines_speak_against,
        chosen_version,
        recorded_objection,
    )
    from pipelines.registry.promotion import holder_of

    tracker = tracker_of(home)
    client, holder = tracker.client(), holder_of(tracker, name, alias)
    found = chosen_version(client, name, recipe.source)
    against = recorded_objection(client, found, alias)
    if against and not force:
        _ask(f"{name} version {found.version}", alias, against)
    # No version has the alias yet: the person is informed, not asked.
    if not against and (said := baselines_speak_against(found)):
        print(f"On record: {said}.")
    # The version that the person saw: another one may get the alias until the flow runs.
    update = {"source": str(found.version), "force": True, "holder": holder}
    forced = recipe.model_copy(update=update)
    _tell(_moved("promote", forced, home))


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
    values = {"name": name, "alias": alias, "reason": because}
    recipe = _recipe("RollbackRecipe", values, home)
    from pipelines.registry.person_choice import version_before

    current, _ = version_before(tracker_of(home).client(), name, alias)
    update = {"holder": int(current.version)}
    _tell(_moved("rollback", recipe.model_copy(update=update), home))


def _ask(version: str, alias: str, against: str) -> None:
    """Exit unless the person confirms; raises UserError if there is no terminal to ask at."""
    if not sys.stdin.isatty():
        raise UserError(
            f"making {version} {alias} needs --force if there is no terminal to ask at; on "
            f"record: {against}"
        )
    print(f"On record: {against}.")
    if not typer.confirm(f"Make {version} {alias} anyway?"):
        print("Nothing was moved.")
        raise typer.Exit(1)


def _recipe(name: str, values: dict[str, Any], home: Path | None) -> Any:
    """The recipe of these values; raises UserError if they are not valid."""
    set_defaults(home_folder(home))
    from pipelines.recipes import registration

    with explained(name.removesuffix("Recipe").lower()):
        return getattr(registration, name)(**values)


def _moved(flow: str, recipe: Any, home: Path | None) -> "Promotion":
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
