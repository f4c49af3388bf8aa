"""The registry and the store that a command works with, and the model that `--model` names."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.environment import home_folder, set_defaults
from pipelines.config.errors import UserError

if TYPE_CHECKING:
    from pipelines.recipes.runtime import RuntimeSettings
    from pipelines.stage import Progress, StageContext
    from pipelines.tracking.tracker import Tracker

Model = Annotated[
    str | None,
    typer.Option(
        help="name, name@alias, name/version, a fingerprint of the store or a folder, ours or a "
        "published BERT. [default: the newest champion of its kind]",
        show_default=False,
    ),
]


def tracker_of(home: Path | None) -> "Tracker":
    """The tracker of this home; raises UserError, in seconds, where it does not answer."""
    require_registry(home)
    from pipelines.recipes.runtime import RuntimeSettings

    return RuntimeSettings().tracker({})


def require_registry(home: Path | None, *, needs: tuple[str, ...] = ()) -> None:
    """Raise UserError, in seconds, where the tracker of this home does not answer, and at once
    where a home without a registry cannot hold a model of the kinds that a command `needs`."""
    runtime = runtime_of(home)
    runtime.check_tracker_reachable()
    if needs and not runtime.has_registry():
        raise _no_model(f"of {runtime.home_folder()}", needs)


def runtime_of(home: Path | None, store: str | None = None) -> "RuntimeSettings":
    """Where this home keeps things.

    Raises UserError where `store` cannot be one.
    """
    set_defaults(home_folder(home))
    from pydantic import ValidationError

    from pipelines.recipes.files import explain
    from pipelines.recipes.runtime import RuntimeSettings

    try:
        return RuntimeSettings(store=store or "")
    except ValidationError as error:
        raise UserError(explain(error, "the runtime settings", RuntimeSettings)) from None


def context_of(home: Path | None, store: str | None = None) -> "StageContext":
    """The surroundings of a command that reads and writes the store, and asks no tracker.

    Raises UserError where `store` cannot be one.
    """
    from pipelines.artifacts import ArtifactStore
    from pipelines.stage import StageContext

    return StageContext(store=ArtifactStore(runtime_of(home, store).store_url()))


def registered_name(name: str) -> str:
    """`name`, where the registry takes it; raises UserError where it does not."""
    from pydantic import TypeAdapter, ValidationError

    from pipelines.recipes.registration import RegistryName

    try:
        TypeAdapter(RegistryName).validate_python(name)
    except ValidationError:
        raise UserError(
            f"--name {name!r} is no name for a model: use letters, digits, '.', '_' and '-', and "
            "begin with a letter or a digit"
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
        raise UserError("--model is empty; name a model or a folder")
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
        raise _no_model(f"at {tracker.shown_uri}", kinds)
    return found


def _no_model(registry: str, kinds: tuple[str, ...]) -> UserError:
    from pipelines.registry.tags import ANY_TASK
    from pipelines.tasks import family_title

    kind = f"of {ANY_TASK}" if ANY_TASK in kinds else f"of the kind {family_title(kinds[0])}"
    return UserError(
        f"the registry {registry} has no verified model {kind}; "
        "run `bertsmith run` first, or name a model with --model"
    )
