"""Removing unused entries from a store."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from pathlib import Path

from pipelines.artifacts.attempt import unless_building
from pipelines.artifacts.claims import attempts, is_abandoned, remove, take_over
from pipelines.artifacts.inventory import Entry, Inventory, read_by_builders
from pipelines.artifacts.store import ArtifactStore


def plan(
    inventory: Inventory, in_use: Collection[str], *, now: datetime, days: float
) -> list[Entry]:
    """What to remove: entries older than `days`, unless used or an input of what is kept.

    `in_use` holds the fingerprints that registered models and recent runs use. Nothing that
    a live builder holds or reads is in the plan.
    """
    limit = now - timedelta(days=days)
    kept = _kept(inventory, in_use, limit)
    artifacts = [each for each in inventory.artifacts if each.paths.fingerprint not in kept]
    leftovers = [
        each for each in inventory.leftovers if not each.is_held and each.modified <= limit
    ]
    return [*artifacts, *leftovers]


def carry_out(store: ArtifactStore, removals: Iterable[Entry]) -> list[Entry]:
    """Remove what was planned, except what a builder has resumed or reads since.

    Returns what was removed. Removing takes minutes on an object store, so builders are looked for
    before each artifact.
    """
    done = []
    # Locks come last: removing anything else takes them.
    for removal in sorted(removals, key=lambda each: each.what == "lock"):
        if not removal.paths.is_local and removal.what == "work":
            _remove_attempts(store, removal)
            done.append(removal)
            continue
        if removal.what == "artifact" and removal.paths.fingerprint in read_by_builders(store):
            continue
        # A builder that waits for the lock takes a new one where this removes it.
        with unless_building(removal.paths, store.lease_seconds) as is_free:
            if is_free:
                _remove(store, removal)
                done.append(removal)
    return done


def _kept(inventory: Inventory, in_use: Collection[str], limit: datetime) -> set[str]:
    """Fingerprints of the artifacts to keep: those used or young, and all their inputs."""
    inputs = {each.paths.fingerprint: each.inputs for each in inventory.artifacts}
    waiting = [*in_use]
    waiting += [each.paths.fingerprint for each in inventory.artifacts if each.modified > limit]
    for leftover in inventory.leftovers:
        # An interrupted build may be resumed, and reads its inputs then.
        if leftover.is_held or (leftover.what == "work" and leftover.modified > limit):
            waiting += [leftover.paths.fingerprint, *leftover.inputs]
    seen: set[str] = set()
    while waiting:
        fingerprint = waiting.pop()
        if fingerprint not in seen:
            seen.add(fingerprint)
            waiting.extend(inputs.get(fingerprint, ()))
    return seen


def _remove(store: ArtifactStore, removal: Entry) -> None:
    """Remove the files of the entry, the manifest first, so that readers find nothing."""
    manifest = removal.paths.manifest
    for path in sorted(removal.files, key=lambda path: path != manifest):
        remove(store.filesystem, path)
    if removal.paths.is_local:
        _remove_empty_folders(Path(removal.path))
        # Held here: a waiting builder takes a new one.
        Path(removal.paths.lock).unlink(missing_ok=True)


def _remove_attempts(store: ArtifactStore, removal: Entry) -> None:
    """Remove abandoned attempts, each claimed first, so that no other process resumes it."""
    filesystem, work = store.filesystem, removal.paths.work
    while (claim := take_over(filesystem, work, store.lease_seconds)) is not None:
        remove(filesystem, claim.folder)
    alive = tuple(
        f"{folder}/"
        for folder in attempts(filesystem, work)
        if not is_abandoned(filesystem, folder, store.lease_seconds)
    )
    for path in removal.files:
        if not path.startswith(alive):
            remove(filesystem, path)


def _remove_empty_folders(entry: Path) -> None:
    for folder in sorted([entry, *entry.rglob("*")], reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
