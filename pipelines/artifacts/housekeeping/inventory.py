"""What a store holds: its artifacts, and what builds and crashes left beside them."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.artifacts.access import explained
from pipelines.artifacts.attempts.attempt import left_alone
from pipelines.artifacts.layout import INPUTS_NAME, Place, beside, is_fingerprint, is_kind
from pipelines.artifacts.manifest import Manifest, read_manifest
from pipelines.artifacts.store import ArtifactStore
from pipelines.core.errors import UserError

_DATES = ("LastModified", "mtime", "created", "last_modified", "updated")  # by file system


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """A published artifact, and what stands on it in this store."""

    place: Place
    manifest: Manifest
    num_bytes: int
    paths: tuple[str, ...]
    used_by: tuple[str, ...]  # fingerprints of the artifacts that have it as an input

    @property
    def created(self) -> datetime:
        """When it was published."""
        return datetime.fromisoformat(self.manifest.created)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that is no artifact: it belongs to a build, or nobody needs it any more."""

    place: Place  # of the artifact that it was to become
    what: str
    entry: str  # the path in the kind's folder that holds it
    num_bytes: int
    modified: datetime
    paths: tuple[str, ...]
    is_held: bool  # by a builder that is alive
    inputs: tuple[str, ...] = ()  # fingerprints of what its builder reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything in a store."""

    artifacts: tuple[StoredArtifact, ...]
    leftovers: tuple[Leftover, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of everything."""
        artifacts = sum(artifact.num_bytes for artifact in self.artifacts)
        return artifacts + sum(leftover.num_bytes for leftover in self.leftovers)


def take_inventory(store: ArtifactStore) -> Inventory:
    """Look through the whole store, newest artifacts last; nothing is changed.

    Raises UserError where the store does not answer.
    """
    artifacts: list[tuple[Place, Manifest, list[_File]]] = []
    leftovers: list[Leftover] = []
    with explained(store.url):
        for place, name, files in _groups(store):
            if name != place.fingerprint:
                found = beside(name)
                assert found is not None, "groups have names that say what they are"
                leftovers.append(_leftover(store, place, name, found.what, files))
                continue
            try:
                manifest = read_manifest(store.filesystem.cat_file(place.manifest), place)
            except (FileNotFoundError, NotADirectoryError):
                leftovers.append(_leftover(store, place, name, "files without a manifest", files))
                continue
            except UserError:
                leftovers.append(_leftover(store, place, name, "files with a bad manifest", files))
                continue
            own = {place.manifest, *(f"{place.root}/{manifest.path_of(n)}" for n in manifest.files)}
            artifacts.append((place, manifest, [file for file in files if file.path in own]))
            others = [file for file in files if file.path not in own]
            if others:
                leftovers.append(_leftover(store, place, name, "files of no artifact", others))
    used_by: dict[str, list[str]] = defaultdict(list)
    for _, manifest, _ in artifacts:
        for fingerprint in set(manifest.inputs.values()):
            used_by[fingerprint].append(manifest.fingerprint)
    return Inventory(
        artifacts=tuple(
            StoredArtifact(
                place=place,
                manifest=manifest,
                num_bytes=sum(file.num_bytes for file in files),
                paths=tuple(file.path for file in files),
                used_by=tuple(sorted(used_by[manifest.fingerprint])),
            )
            for place, manifest, files in sorted(artifacts, key=lambda each: each[1].created)
        ),
        leftovers=tuple(leftovers),
    )


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    num_bytes: int
    modified: datetime


def _groups(store: ArtifactStore) -> Iterator[tuple[Place, str, list[_File]]]:
    """Files of the store by the artifact that they belong to and the entry that they lie in."""
    for kind in _names(store, store.root):
        if not is_kind(kind):
            continue
        folder = f"{store.root}/{kind}"
        by_name: dict[str, list[_File]] = {name: [] for name in _names(store, folder)}
        for path, facts in store.filesystem.find(folder, detail=True).items():
            name = path.removeprefix(f"{folder}/").split("/")[0]
            by_name.setdefault(name, []).append(_File(path, facts["size"] or 0, _date(facts)))
        for name, files in sorted(by_name.items()):
            found = beside(name)
            fingerprint = found.fingerprint if found else name
            if is_fingerprint(fingerprint):
                yield store.place(kind, fingerprint), name, files


def _names(store: ArtifactStore, folder: str) -> list[str]:
    try:
        entries = store.filesystem.ls(folder, detail=False)
    except FileNotFoundError:
        return []
    return sorted(name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2]))


def _leftover(
    store: ArtifactStore, place: Place, name: str, what: str, files: list[_File]
) -> Leftover:
    entry = f"{place.kind_folder}/{name}"
    return Leftover(
        place=place,
        what=what,
        entry=entry,
        num_bytes=sum(file.num_bytes for file in files),
        modified=max((file.modified for file in files), default=_begun(store, entry)),
        paths=tuple(file.path for file in files),
        is_held=_is_held(store, place),
        inputs=_inputs(store, files) if what == "work" else (),
    )


def _begun(store: ArtifactStore, entry: str) -> datetime:
    """When a folder was made: of an empty one nothing else has a date."""
    try:
        return _date(store.filesystem.info(entry))
    except FileNotFoundError:
        return datetime.now(UTC)  # its build has just ended


def _is_held(store: ArtifactStore, place: Place) -> bool:
    if place.is_local and not Path(place.lock).exists():
        return False
    with left_alone(place, store.lease_seconds) as is_free:
        return not is_free


def _inputs(store: ArtifactStore, files: list[_File]) -> tuple[str, ...]:
    found: set[str] = set()
    for file in files:
        if file.path.endswith(f"/{INPUTS_NAME}"):
            try:
                inputs: Mapping[str, str] = json.loads(store.filesystem.cat_file(file.path))
            except FileNotFoundError:
                continue  # its build has just ended
            found.update(inputs.values())
    return tuple(sorted(found))


def _date(facts: Mapping[str, Any]) -> datetime:
    value = next((facts[key] for key in _DATES if facts.get(key)), None)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    # Where a store dates nothing, what it holds counts as new.
    return datetime.fromtimestamp(value, UTC) if value else datetime.now(UTC)
