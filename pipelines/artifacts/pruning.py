"""Removing from a store what nothing stands on."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path, PurePosixPath

from pipelines.artifacts.attempts import left_alone
from pipelines.artifacts.claims import remove
from pipelines.artifacts.inventory import Inventory, Leftover, StoredArtifact
from pipelines.artifacts.layout import Place
from pipelines.artifacts.store import ArtifactStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Something to remove, and why it may go."""

    place: Place
    what: str  # "artifact", or what the leftover is
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
                num_bytes=leftover.num_bytes,
                paths=leftover.paths,
                reason=f"older than {days:g} days, and nobody builds with it",
            )
        )
    return removals


def carry_out(store: ArtifactStore, removals: Iterable[Removal]) -> list[Removal]:
    """Remove what was planned, but for what a builder has taken up since; returns what went."""
    done = []
    for removal in removals:
        if removal.place.is_local and removal.what == "lock":
            went = _remove_lock(removal.place)
        else:
            with left_alone(removal.place, store.lease_seconds) as is_free:
                if is_free:
                    _remove(store, removal)
                went = is_free
        if went:
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
    for path in sorted(removal.paths, key=lambda path: path != removal.place.manifest):
        remove(store.filesystem, path)
    if removal.place.is_local:
        _remove_empty_folders(Path(removal.place.kind_folder), removal.paths)


def _remove_empty_folders(kind_folder: Path, paths: Iterable[str]) -> None:
    folders = {
        kind_folder / parent
        for path in paths
        for parent in PurePosixPath(path).relative_to(kind_folder.as_posix()).parents
    } - {kind_folder}
    for folder in sorted(folders, reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _remove_lock(place: Place) -> bool:
    """Remove the lock file while holding it: a builder that waits for it takes a new one."""
    if not Path(place.lock).exists():
        return False
    with left_alone(place) as is_free:
        if is_free:
            Path(place.lock).unlink()
        return is_free
