"""The registry on the command line: its models, one of them in full, and who is champion."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.registry import AsJson, Home, Store, context_of, explained, tracker_of
from flows.environment import home_folder, prepare_flows, set_defaults

Name = Annotated[str, typer.Argument(help="Registered name of the model.")]
Because = Annotated[str, typer.Option("--because", help="Why, for the history.")]


def models(
    model: Annotated[
        str | None,
        typer.Argument(help="name, name@alias or name/version: show this one in full."),
    ] = None,
    store: Store = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """List registered models with their scores, or show one in full.

    In full: its proof, its comparison, why it has its aliases, and what it was made from, down to
    files and settings.

    Example: bertsmith models bertsmith-encoder@champion
    """
    if model is not None:
        _show(model, home, store, as_json=as_json)
        return
    from pipelines.registry.find import list_models
    from pipelines.tasks import family_title

    rows = list_models(tracker_of(home))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], default=str, indent=2))
        return
    if not rows:
        print("The registry is empty; `bertsmith run` fills it.")
        return
    width = max(len(row.name) for row in rows)
    for row in rows:
        figure = f"{row.metric} {row.value:.1%}" if row.value is not None else ""
        aliases = ", ".join(f"@{alias}" for alias in row.aliases)
        proof = "verified" if row.is_verified else "not verified"
        print(
            f"{row.name:<{width}}  version {row.version:<3} {aliases:<22} "
            f"{family_title(row.kind):<18} {figure:<24} {proof:<12} "
            f"{row.created:%Y-%m-%d %H:%M}  {row.fingerprint[:12]}"
        )
        for alias, reason in row.promoted.items():
            print(f"{'':<{width}}  {alias}: {reason}")
        if row.comparison and row.comparison not in row.promoted.values():
            print(f"{'':<{width}}  {row.comparison}")


def _show(model: str, home: Home, store: Store, *, as_json: bool) -> None:
    tracker = tracker_of(home)
    from pipelines.registry.find import find_model, uri_of
    from pipelines.registry.register import lineage_lines

    version = find_model(tracker.client(), model)
    tags = {
        key.removeprefix("bertsmith."): value
        for key, value in sorted(version.tags.items())
        if key.startswith("bertsmith.")
    }
    aliases = sorted(version.aliases)
    kind = "encoder" if tags.get("kind") == "encoder" else "finetuned"
    lines = lineage_lines(kind, tags.get("fingerprint", ""), context_of(home, store).store)
    if as_json:
        whole = {"model": uri_of(version), "aliases": aliases, "tags": tags, "lineage": lines}
        print(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    print(f"{uri_of(version)}  {', '.join(f'@{alias}' for alias in aliases) or 'no alias'}")
    for key, value in tags.items():
        print(f"  {key}: {value}")
    print("made from")
    for line in lines:
        print(f"  {line}")


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
    """Run the flow, after checking the request and showing what speaks against the version."""
    folder = home_folder(home)
    set_defaults(folder)
    from pipelines.recipes.recipe import PromotionRecipe

    with explained("promote"):
        recipe = PromotionRecipe(name=name, source=source, alias=alias, reason=because)
    from pipelines.registry.find import COMPARISON_TAG
    from pipelines.registry.promote import PREVIOUS, decide_promotion

    tracker = tracker_of(home)
    chosen = decide_promotion(tracker, name, source, alias)
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
