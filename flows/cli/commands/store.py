"""Commands that list the artifact store and remove what is unused."""

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.registry import AsJson, Home, Store, runtime_of, tracker_of
from flows.reporting.progress_line import duration, memory
from pipelines.config.errors import redacted

if TYPE_CHECKING:
    from pipelines.artifacts import ArtifactStore
    from pipelines.artifacts.inventory import Entry, Inventory, StoredArtifact

_DAYS = 30.0


def show(home: Home = None, store: Store = None, as_json: AsJson = False) -> None:
    """List the artifacts of the store: size, age, origin, users.

    Example: bertsmith store
    """
    from pipelines.artifacts.inventory import take_inventory
    from pipelines.registry.find import fingerprints_in_use

    artifacts = _open(home, store)
    models = fingerprints_in_use(tracker_of(home))
    inventory = take_inventory(artifacts)
    if as_json:
        print(json.dumps(_as_json(artifacts, inventory, models), indent=2))
        return
    if not inventory.artifacts and not inventory.leftovers:
        print(f"The store {redacted(artifacts.url)} is empty; `bertsmith run` fills it.")
        return
    print(f"{redacted(artifacts.url)}\n")
    print(f"{'kind':<16} {'fingerprint':<13} {'size':>9} {'age':>13}  {'made by':<22} used by")
    for each in inventory.artifacts:
        print(
            f"{each.paths.kind:<16} {each.paths.fingerprint[:12]:<13} {_size(each.num_bytes):>9} "
            f"{_age(each.modified):>13}  {each.manifest.code_version:<22} "
            f"{_users(each, inventory, models)}"
        )
    for left in inventory.leftovers:
        if left.what != "lock":
            print(
                f"{left.paths.kind:<16} {left.paths.fingerprint[:12]:<13} "
                f"{_size(left.num_bytes):>9} {_age(left.modified):>13}  {left.what}"
                + (", being built" if left.is_held else "")
            )
    print(f"\n{len(inventory.artifacts)} artifacts, {_size(inventory.num_bytes)} in all")


def prune(
    home: Home = None,
    store: Store = None,
    days: Annotated[
        float,
        typer.Option(min=0, max=36500, help="Keep what is younger, or used by a younger run."),
    ] = _DAYS,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without this they are only listed.")
    ] = False,
) -> None:
    """Remove artifacts that no registered model or recent run uses.

    Leftovers of interrupted work as well. Without --yes nothing is removed. The registry is that of
    the home or of MLFLOW_TRACKING_URI: if people share a store, name the registry that they share.

    Example: bertsmith prune --days 7
    """
    from pipelines.artifacts.inventory import take_inventory
    from pipelines.artifacts.pruning import carry_out, plan
    from pipelines.registry.find import fingerprints_in_use

    now = datetime.now(UTC)
    artifacts, tracker = _open(home, store), tracker_of(home)
    in_use = fingerprints_in_use(tracker, since=now - timedelta(days=days))
    removals = plan(take_inventory(artifacts), in_use, now=now, days=days)
    print(f"store    {redacted(artifacts.url)}\nregistry {tracker.shown_uri}\n")
    if not removals:
        print("Nothing to remove.")
        return
    for removal in removals:
        if removal.what != "lock":
            print(_line(removal, days))
    locks = sum(removal.what == "lock" for removal in removals)
    if locks:
        print(f"and {locks} unused lock files")
    total = sum(removal.num_bytes for removal in removals)
    if not yes:
        print(f"\n{_size(total)} would be freed; `{_command(home, store, days)}` removes it.")
        return
    done = carry_out(artifacts, removals)
    print(f"\n{_size(sum(removal.num_bytes for removal in done))} freed.")
    if len(done) < len(removals):
        print(f"{len(removals) - len(done)} entries are in use by a running build and stay.")


def _command(home: Path | None, store: str | None, days: float) -> str:
    """The same command with `--yes`, which removes what was listed."""
    given = {"--home": home, "--store": store and redacted(store)}
    words = [word for name, value in given.items() if value for word in (name, str(value))]
    if days != _DAYS:
        words += ["--days", f"{days:g}"]
    return shlex.join(["bertsmith", "prune", *words, "--yes"])


def _open(home: Path | None, store: str | None) -> "ArtifactStore":
    from pipelines.artifacts import ArtifactStore

    return ArtifactStore(runtime_of(home, store).store_url(), is_patient=False)  # a person waits


def _users(
    artifact: "StoredArtifact", inventory: "Inventory", models: dict[str, tuple[str, ...]]
) -> str:
    kinds = {each.paths.fingerprint: each.paths.kind for each in inventory.artifacts}
    stages = [f"{kinds[name]} {name[:8]}" for name in artifact.used_by]
    return ", ".join([*stages, *models.get(artifact.paths.fingerprint, ())]) or "-"


def _line(removal: "Entry", days: float) -> str:
    unused = "nothing uses it" if removal.what == "artifact" else "no build uses it"
    return (
        f"{removal.paths.kind:<16} {removal.paths.fingerprint[:12]:<13} "
        f"{_size(removal.num_bytes):>9}  {removal.what}: older than {days:g} days, and {unused}"
    )


def _size(num_bytes: float) -> str:
    return memory(num_bytes) if num_bytes >= 2**20 else f"{num_bytes / 1024:.0f} KiB"


def _age(moment: datetime) -> str:
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    return duration(seconds) if seconds < 86_400 else f"{seconds / 86_400:.0f} days"


def _as_json(
    store: "ArtifactStore", inventory: "Inventory", models: dict[str, tuple[str, ...]]
) -> dict[str, Any]:
    return {
        "store": redacted(store.url),
        "artifacts": [
            {
                "kind": each.paths.kind,
                "fingerprint": each.paths.fingerprint,
                "bytes": each.num_bytes,
                "created": each.manifest.created,
                "code_version": each.manifest.code_version,
                "inputs": each.manifest.inputs,
                "used_by": list(each.used_by),
                "models": list(models.get(each.paths.fingerprint, ())),
            }
            for each in inventory.artifacts
        ],
        "leftovers": [
            {
                "kind": each.paths.kind,
                "fingerprint": each.paths.fingerprint,
                "what": each.what,
                "bytes": each.num_bytes,
                "modified": each.modified.isoformat(timespec="seconds"),
                "is_held": each.is_held,
            }
            for each in inventory.leftovers
        ],
    }
