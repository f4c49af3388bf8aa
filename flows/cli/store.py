"""Commands that list the artifact store and remove what is unused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.options import Home, Store, runtime_of, tracker_of
from pipelines.errors import UserError, redacted

if TYPE_CHECKING:
    from pipelines.store import ArtifactStore
    from pipelines.store.pruning import Entry

_TRAINED = {"encoder", "finetuned", "imported_model", "imported_encoder"}


commands = typer.Typer()


@commands.callback(invoke_without_command=True)
def show(context: typer.Context, home: Home = None, store: Store = None) -> None:
    """List the artifacts of the store; `prune` removes unused ones.

    Each with its size, its time, and what uses it.

    Example: bertsmith store
    """
    if context.invoked_subcommand is not None:
        if home or store:
            raise UserError(f"give options after {context.invoked_subcommand}")
        return
    from pipelines.registry.find import fingerprints_in_use
    from pipelines.stage import has_registry
    from pipelines.store.pruning import take_inventory

    artifacts, tracker = _open(home, store), tracker_of(home)
    is_there = has_registry(runtime_of(home))
    models = fingerprints_in_use(tracker) if is_there else {}
    entries = take_inventory(artifacts)
    print(f"store    {redacted(artifacts.url)}\nregistry {tracker.shown_uri}\n")
    for each in entries:
        stages = [
            f"{user.kind} {user.fingerprint[:8]}"
            for user in entries
            if user.manifest and each.fingerprint in user.inputs
        ]
        used_by = ", ".join([*stages, *models.get(each.fingerprint, ())]) or "nothing"
        print(f"{_row(each)}  {f'used by {used_by}' if each.manifest else 'unfinished'}")
    print(f"\n{len(entries)} entries, {_size(sum(each.num_bytes for each in entries))} in all")


@commands.command()
def prune(
    home: Home = None,
    store: Store = None,
    days: Annotated[
        float,
        typer.Option(min=0, max=36500, help="Keep what is younger, or used by a younger run."),
    ] = 30.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without this they are only listed.")
    ] = False,
    without_models: Annotated[
        bool,
        typer.Option(
            "--without-models",
            help="Go on where the registry has no model at all; default: refused where the store "
            "has trained ones.",
        ),
    ] = False,
) -> None:
    """Remove artifacts that no registered model, running run or recent run uses.

    Leftovers of interrupted work as well. Without --yes nothing is removed. The registry is that of
    the home or of MLFLOW_TRACKING_URI: if people share a store, name the registry that they share.

    Example: bertsmith store prune --days 7
    """
    from pipelines.registry.find import fingerprints_in_use
    from pipelines.stage import has_registry
    from pipelines.store.pruning import plan, remove_entry, take_inventory

    now = datetime.now(UTC)
    artifacts, tracker = _open(home, store), tracker_of(home)
    entries = take_inventory(artifacts)
    print(f"store    {redacted(artifacts.url)}\nregistry {tracker.shown_uri}\n", flush=True)
    is_there = has_registry(runtime_of(home))
    has_models = is_there and bool(fingerprints_in_use(tracker))
    if not has_models and not without_models and _TRAINED & {e.kind for e in entries}:
        raise UserError(
            f"the registry {tracker.shown_uri} has no models, but the store "
            f"{redacted(artifacts.url)} has trained ones: name their registry in "
            "MLFLOW_TRACKING_URI or --home, or say --without-models"
        )
    since = now - timedelta(days=days)
    in_use = fingerprints_in_use(tracker, since=since) if is_there else {}
    removals = plan(entries, in_use, now=now, days=days)
    for removal in removals:
        print(f"{_row(removal)}  older than {days:g} days, and nothing uses it")
    total = _size(sum(removal.num_bytes for removal in removals))
    if not removals:
        print("Nothing to remove.")
    elif not yes:
        print(f"\n{total} would be freed; the same command with --yes removes it.")
    else:
        removed = [removal for removal in removals if remove_entry(artifacts, removal)]
        print(f"\n{_size(sum(removal.num_bytes for removal in removed))} freed.")


def _open(home: Path | None, store: str | None) -> "ArtifactStore":
    from pipelines.store import ArtifactStore

    return ArtifactStore(runtime_of(home, store).store_url(), is_patient=False)  # a person waits


def _row(entry: "Entry") -> str:
    return (
        f"{entry.kind:<16} {entry.fingerprint[:12]:<13} {_size(entry.num_bytes):>12} "
        f"{entry.modified:%Y-%m-%d %H:%M}"
    )


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
