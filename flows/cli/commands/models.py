"""Commands that list registered models, and let one fill gaps."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from flows.cli.asked_model import asked_model
from flows.cli.options import AsJson, Home
from flows.cli.registry import Model, tracker_of
from pipelines.core.errors import UserError

_SHOWN_MOVES = 10  # of a name; --json has all


def add_to(app: typer.Typer) -> None:
    """Add these commands to the application."""
    app.command("fill-mask")(fill_mask)
    app.command()(models)


def fill_mask(
    text: Annotated[str, typer.Argument(help="A sentence with [MASK] in place of a word.")],
    model: Model = None,
    top: Annotated[int, typer.Option(min=1, help="How many candidates to show.")] = 5,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Say which words a registered encoder would put in place of [MASK].

    Example: bertsmith fill-mask 'Returns the [MASK] of the array.'
    """
    if "[MASK]" not in text:
        raise UserError(
            f"there is no [MASK] in {text!r}; write it in place of a word, for example "
            "'Returns the [MASK] of the array.'"
        )
    with asked_model(model, home, "encoder", fills_gaps=True) as (folder, called):
        from pipelines.inference.answers import fill
        from pipelines.registry.lookups.folders import opened

        gaps = fill(opened(folder), called, text, top_k=top)
    if as_json:
        print(json.dumps([[asdict(candidate) for candidate in gap] for gap in gaps]))
        return
    for number, gap in enumerate(gaps, start=1):
        if len(gaps) > 1:
            print(f"[MASK] {number}")
        for candidate in gap:
            print(f"{candidate.probability:6.1%}  {candidate.piece}")


def models(home: Home = None, as_json: AsJson = False) -> None:
    """List what the registry holds: versions, how they compare, and who had which alias.

    Example: bertsmith models
    """
    from pipelines.registry.listing import list_models, list_moves
    from pipelines.tasks import family_title

    tracker = tracker_of(home)
    rows = list_models(tracker)
    moves = {name: list_moves(tracker, name) for name in dict.fromkeys(row.name for row in rows)}
    if as_json:
        told = [
            {
                **asdict(row),
                "moves": [asdict(move) for move in moves[row.name] if move.version == row.version],
            }
            for row in rows
        ]
        print(json.dumps(told, default=str, indent=2))
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
        if row.judgement:
            print(f"{'':<{width}}  {row.judgement}")
        if row.lineage:
            made_from = ", ".join(f"{kind} {value[:12]}" for kind, value in row.lineage.items())
            print(f"{'':<{width}}  made from {made_from}")
    for name, found in moves.items():
        if found:
            print(f"\n{name}, who had which alias")
        for move in found[-_SHOWN_MOVES:]:
            before = f", before {move.before}" if move.before else ""
            # What a comparison came to stands with its version.
            why = "comparison" if move.how == "comparison" else f"{move.by}: {move.reason}"
            print(
                f"  {move.at[:16].replace('T', ' ')}  {move.alias} is version {move.version}"
                f"{before}, by {why}"
            )
