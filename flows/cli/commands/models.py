"""Commands that use registered models."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import AsJson, Home
from flows.environment import home_folder, set_defaults
from pipelines.core.errors import UserError

if TYPE_CHECKING:
    from pipelines.core.place import PlaceSettings
    from pipelines.core.stage import Progress, StageContext
    from pipelines.core.tracking.tracker import Tracker

_SHOWN_MOVES = 10  # of a name; --json has all

Model = Annotated[
    str | None,
    typer.Option(
        help="name, name@alias, name/version, a fingerprint of the store or a folder, ours or a "
        "published BERT. [default: the newest champion of its kind]",
        show_default=False,
    ),
]


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
            f"the text must hold [MASK] in place of a word, found none in {text!r}; "
            "write for example 'Returns the [MASK] of the array.'"
        )
    from flows.cli.asked_model import asked_model

    with asked_model(model, home, "encoder", fills_gaps=True) as (folder, called):
        from pipelines.insight import predictions
        from pipelines.registry.opening import opened

        gaps = predictions.fill(opened(folder), called, text, top_k=top)
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


def tracker_of(home: Path | None) -> "Tracker":
    """The tracker of this home; raises UserError, in seconds, where it does not answer."""
    refuse_no_registry(home)
    from pipelines.core.place import PlaceSettings

    return PlaceSettings().tracker({})


def refuse_no_registry(home: Path | None, *, needs: str | None = None) -> None:
    """Raise UserError, in seconds, where the tracker of this home does not answer, and at once
    where a home without a registry cannot hold the kind of model that a command `needs`."""
    set_defaults(home_folder(home))
    from pipelines.core.place import PlaceSettings

    place = PlaceSettings()
    place.refuse_unreachable_tracker()
    if needs is not None and not place.has_registry():
        raise _no_model(f"of {place.home_folder()}", needs)


def place_of(home: Path | None, store: str | None = None) -> "PlaceSettings":
    """Where this home keeps things.

    Raises UserError where `store` cannot be one.
    """
    set_defaults(home_folder(home))
    from pydantic import ValidationError

    from pipelines.core.place import PlaceSettings
    from pipelines.core.recipes.files import explain

    try:
        return PlaceSettings(store=store or "")
    except ValidationError as error:
        raise UserError(explain(error, "the place", PlaceSettings)) from None


def context_of(home: Path | None, store: str | None = None) -> "StageContext":
    """The surroundings of a command that reads and writes the store, and asks no tracker.

    Raises UserError where `store` cannot be one.
    """
    from pipelines.artifacts import ArtifactStore
    from pipelines.core.stage import StageContext

    return StageContext(store=ArtifactStore(place_of(home, store).store_url()))


def registered_name(name: str) -> str:
    """`name`, where the registry takes it; raises UserError where it does not."""
    from pydantic import TypeAdapter, ValidationError

    from pipelines.registry.settings import RegistryName

    try:
        TypeAdapter(RegistryName).validate_python(name)
    except ValidationError:
        raise UserError(
            "--name must be letters, digits, '.', '_' and '-', and begin with a letter or a digit, "
            f"found {name or 'an empty name'}"
        ) from None
    return name


def named(model: str | None, home: Path | None) -> str | None:
    """What `--model` says, as the registry's look-ups take it: a name there, or a folder of ours.

    A fingerprint becomes the folder of its artifact; a published BERT is taken into the store
    first. Raises UserError for an empty name, a fingerprint that the store has not, and a folder
    that holds no model.
    """
    if model is None:
        return None
    if not model.strip():
        raise UserError("--model must name a model or a folder, found an empty name")
    from pipelines.registry.opening import local_model

    return local_model(model, replace(context_of(home), observe=_say_note))


def _say_note(progress: "Progress") -> None:
    if progress.note:
        print(progress.note, file=sys.stderr)


def newest(tracker: "Tracker", *kinds: str, fills_gaps: bool = False) -> str:
    """The newest champion of these kinds; where none has that alias, the newest proved version.

    With `fills_gaps` one that learned to predict tokens goes before others. Raises UserError where
    no version proved itself.
    """
    from pipelines.registry.finding import newest_of

    found = newest_of(tracker.client(), kinds, fills_gaps)
    if found is None:
        raise _no_model(f"at {tracker.shown_uri}", kinds[0])
    return found


def _no_model(registry: str, kind: str) -> UserError:
    from pipelines.tasks import family_title

    return UserError(
        f"the registry {registry} must hold a model of the kind {family_title(kind)} that "
        "proved itself, found none; run `bertsmith run` first, or name one with --model"
    )
