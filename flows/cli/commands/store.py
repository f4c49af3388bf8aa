"""Commands that list the artifact store and remove what is unused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli.registry import Home, Store, runtime_of, tracker_of
from flows.reporting.progress_line import duration
from pipelines.errors import UserError, redacted

if TYPE_CHECKING:
    from pipelines.store import ArtifactStore
    from pipelines.store.pruning import Entry

_TRAINED = {"encoder", "finetuned", "imported_model", "imported_encoder"}
_UNFINISHED = "files of an unfinished build"


commands = typer.Typer()


@commands.callback(invoke_without_command=True)
def show(context: typer.Context, home: Home = None, store: Store = None) -> None:
    """List the artifacts of the store: size, age, origin, users.

    Example: bertsmith store
    """
    if context.invoked_subcommand is not None:
        if home or store:
            raise UserError(f"give options after {context.invoked_subcommand}")
        return
    from pipelines.registry.find import fingerprints_in_use
    from pipelines.store.pruning import take_inventory

    artifacts, tracker = _open(home, store), tracker_of(home)
    models = fingerprints_in_use(tracker) if tracker.exists() else {}
    entries = take_inventory(artifacts)
    if not entries:
        print(f"The store {redacted(artifacts.url)} is empty; `bertsmith run` fills it.")
        return
    print(f"store    {redacted(artifacts.url)}\nregistry {tracker.shown_uri}\n")
    print(f"{'kind':<16} {'fingerprint':<13} {'size':>9} {'age':>13}  {'made by':<22} used by")
    for each in entries:
        if each.manifest is None:
            print(f"{_row(each)} {_age(each.modified):>13}  {_UNFINISHED}")
            continue
        stages = [
            f"{user.kind} {user.fingerprint[:8]}"
            for user in entries
            if user.manifest and each.fingerprint in user.inputs
        ]
        used_by = ", ".join([*stages, *models.get(each.fingerprint, ())]) or "-"
        print(f"{_row(each)} {_age(each.modified):>13}  {each.manifest.code_version:<22} {used_by}")
    total = sum(each.num_bytes for each in entries)
    num_artifacts = sum(each.manifest is not None for each in entries)
    print(f"\n{num_artifacts} artifacts, {_size(total)} in all")


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
    from pipelines.store.pruning import plan, remove_entry, take_inventory

    now = datetime.now(UTC)
    artifacts, tracker = _open(home, store), tracker_of(home)
    entries = take_inventory(artifacts)
    has_registry = tracker.exists()
    models = fingerprints_in_use(tracker) if has_registry else {}
    kinds = {entry.kind for entry in entries if entry.manifest}
    if not models and not without_models and kinds & _TRAINED:
        state = "has no models" if has_registry else "is not there"
        raise UserError(
            f"the registry {tracker.shown_uri} {state}, but the store {redacted(artifacts.url)} "
            "has trained ones: name their registry in MLFLOW_TRACKING_URI or --home, or say "
            "--without-models"
        )
    since = now - timedelta(days=days)
    in_use = fingerprints_in_use(tracker, since=since) if has_registry else {}
    removals = plan(entries, in_use, now=now, days=days)
    print(f"store    {redacted(artifacts.url)}\nregistry {tracker.shown_uri}\n")
    if not removals:
        print("Nothing to remove.")
        return
    for removal in removals:
        what = "artifact" if removal.manifest else _UNFINISHED
        print(f"{_row(removal)}  {what}: older than {days:g} days, and nothing uses it")
    total = sum(removal.num_bytes for removal in removals)
    if not yes:
        print(f"\n{_size(total)} would be freed; the same command with --yes removes it.")
        return
    for removal in removals:
        remove_entry(artifacts, removal)
    print(f"\n{_size(total)} freed.")


def _open(home: Path | None, store: str | None) -> "ArtifactStore":
    from pipelines.store import ArtifactStore

    return ArtifactStore(runtime_of(home, store).store_url(), is_patient=False)  # a person waits


def _row(entry: "Entry") -> str:
    return f"{entry.kind:<16} {entry.fingerprint[:12]:<13} {_size(entry.num_bytes):>9}"


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def _age(moment: datetime) -> str:
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    return duration(seconds) if seconds < 86_400 else f"{seconds / 86_400:.0f} days"
