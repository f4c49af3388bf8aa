"""Removing from a store what nothing stands on."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from pipelines.artifacts.attempts.attempt import left_alone
from pipelines.artifacts.attempts.claims import attempts, is_abandoned, remove, take_over
from pipelines.artifacts.housekeeping.inventory import Inventory, Leftover, StoredArtifact
from pipelines.artifacts.layout import Place
from pipelines.artifacts.store import ArtifactStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Something to remove, and why it may go."""

    place: Place
    what: str  # "artifact", or what the leftover is
    entry: str  # the path in the kind's folder that holds it
    num_bytes: int
    paths: tuple[str, ...]
    reason: str


def plan(
    inventory: Inventory, in_use: Collection[str], *, now: datetime, days: float
) -> list[Removal]:
    """What may go: neither younger than `days`, nor in use, nor read for something that stays.

    `in_use` holds the fingerprints that registered models and recent runs stand on. Nothing that
    a live builder holds or reads is in the plan.
    """
    limit = now - timedelta(days=days)
    kept = set(_kept(inventory, in_use, limit))
    removals = [
        Removal(
            place=artifact.place,
            what="artifact",
            entry=artifact.place.root,
            num_bytes=artifact.num_bytes,
            paths=artifact.paths,
            reason=f"older than {days:g} days, and nothing stands on it",
        )
        for artifact in inventory.artifacts
        if artifact.manifest.fingerprint not in kept
    ]
    for leftover in inventory.leftovers:
        if leftover.is_held or leftover.modified > limit:
            continue
        removals.append(
            Removal(
                place=leftover.place,
                what=leftover.what,
                entry=leftover.entry,
                num_bytes=leftover.num_bytes,
                paths=leftover.paths,
                reason=f"older than {days:g} days, and nobody builds with it",
            )
        )
    return removals


def carry_out(store: ArtifactStore, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned, but for what a builder has taken up since; returns what went."""
    done = []
    # Locks come last: removing anything else takes them.
    for removal in sorted(removals, key=lambda each: each.what == "lock"):
        if not removal.place.is_local and removal.what == "work":
            _remove_attempts(store, removal)
            done.append(removal)
            continue
        # A builder that waits for the lock takes a new one where this removes it.
        with left_alone(removal.place, store.lease_seconds) as is_free:
            if is_free:
                _remove(store, removal)
                done.append(removal)
    return done


def _kept(inventory: Inventory, in_use: Collection[str], limit: datetime) -> Iterable[str]:
    """Fingerprints of the artifacts that stay: what is used or young, and all that made it."""
    inputs = {
        artifact.manifest.fingerprint: artifact.manifest.inputs.values()
        for artifact in inventory.artifacts
    }
    waiting = [*in_use]
    waiting += [each.manifest.fingerprint for each in inventory.artifacts if _is_young(each, limit)]
    for leftover in inventory.leftovers:
        if leftover.is_held or _may_go_on(leftover, limit):
            waiting += [leftover.place.fingerprint, *leftover.inputs]
    seen: set[str] = set()
    while waiting:
        fingerprint = waiting.pop()
        if fingerprint not in seen:
            seen.add(fingerprint)
            waiting.extend(inputs.get(fingerprint, ()))
    return seen


def _is_young(artifact: StoredArtifact, limit: datetime) -> bool:
    return artifact.created > limit


def _may_go_on(leftover: Leftover, limit: datetime) -> bool:
    """Whether an interrupted build may still be taken up, and will read its inputs then."""
    return leftover.what == "work" and leftover.modified > limit


def _remove(store: ArtifactStore, removal: Removal) -> None:
    """Remove the files that were seen, the manifest first: readers then find nothing at all."""
    if removal.place.manifest in removal.paths:
        remove(store.filesystem, removal.place.manifest)
    for path in removal.paths:
        if path != removal.place.manifest:
            remove(store.filesystem, path)
    if removal.place.is_local:
        _remove_empty_folders(Path(removal.entry))
        Path(removal.place.lock).unlink(missing_ok=True)  # held here: who waits takes a new one


def _remove_attempts(store: ArtifactStore, removal: Removal) -> None:
    """Remove abandoned attempts, each claimed first: nobody else goes on with it meanwhile."""
    filesystem, place = store.filesystem, removal.place
    while (claim := take_over(filesystem, place.work, store.lease_seconds)) is not None:
        remove(filesystem, claim.folder)
    alive = tuple(
        f"{folder}/"
        for folder in attempts(filesystem, place.work)
        if not is_abandoned(filesystem, folder, store.lease_seconds)
    )
    for path in removal.paths:
        if not path.startswith(alive):
            remove(filesystem, path)


def _remove_empty_folders(entry: Path) -> None:
    for folder in sorted([entry, *entry.rglob("*")], reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
