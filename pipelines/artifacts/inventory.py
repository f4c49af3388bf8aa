"""The contents of a store: its artifacts, and what builds and crashes left beside them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.artifacts.access import names_in, store_errors_explained
from pipelines.artifacts.attempt import unless_building
from pipelines.artifacts.manifest import (
    INPUTS_NAME,
    ArtifactPaths,
    Manifest,
    fingerprint_in,
    is_kind,
    read_manifest,
)
from pipelines.artifacts.store import ArtifactStore
from pipelines.config.errors import UserError

_DATES = ("LastModified", "mtime", "created", "last_modified", "updated")  # by file system


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a store: an artifact, files of a build, or files that belong to nothing."""

    paths: ArtifactPaths  # of the artifact that it is, or was to become
    what: str  # "artifact", "draft", "work", "lock", "aside", or which files are no artifact's
    path: str  # in the kind's folder
    files: tuple[str, ...]
    num_bytes: int
    modified: datetime  # of an artifact: when it was published
    is_held: bool = False  # by a builder that is alive
    inputs: tuple[str, ...] = ()  # fingerprints of what it is made from


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact(Entry):
    """A published artifact, and what was made from it in this store."""

    manifest: Manifest
    used_by: tuple[str, ...]  # fingerprints of the artifacts that have it as an input


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything in a store."""

    artifacts: tuple[StoredArtifact, ...]
    leftovers: tuple[Entry, ...]

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in (*self.artifacts, *self.leftovers))


def take_inventory(store: ArtifactStore) -> Inventory:
    """Look through the whole store, newest artifacts last; nothing is changed.

    Raises UserError where the store does not answer.
    """
    artifacts: list[tuple[ArtifactPaths, Manifest, list[_File]]] = []
    leftovers: list[Entry] = []
    with store_errors_explained(store.url):
        for paths, name, files in _groups(store):
            if name != paths.fingerprint:
                what = name[1:].partition("-")[0]  # of .draft-<fingerprint> and the like
                leftovers.append(_leftover(store, paths, name, what, files))
                continue
            try:
                manifest = read_manifest(store.filesystem.cat_file(paths.manifest), paths)
            except (FileNotFoundError, NotADirectoryError):
                leftovers.append(_leftover(store, paths, name, "files without a manifest", files))
                continue
            except UserError:
                leftovers.append(_leftover(store, paths, name, "files with a bad manifest", files))
                continue
            own = {paths.manifest, *(f"{paths.root}/{manifest.path_of(n)}" for n in manifest.files)}
            artifacts.append((paths, manifest, [file for file in files if file.path in own]))
            others = [file for file in files if file.path not in own]
            if others:
                leftovers.append(_leftover(store, paths, name, "files of no artifact", others))
    used_by: dict[str, list[str]] = defaultdict(list)
    for _, manifest, _ in artifacts:
        for fingerprint in set(manifest.inputs.values()):
            used_by[fingerprint].append(manifest.fingerprint)
    return Inventory(
        artifacts=tuple(
            StoredArtifact(
                paths=paths,
                what="artifact",
                path=paths.root,
                files=tuple(file.path for file in files),
                num_bytes=sum(file.num_bytes for file in files),
                modified=datetime.fromisoformat(manifest.created),
                inputs=tuple(manifest.inputs.values()),
                manifest=manifest,
                used_by=tuple(sorted(used_by[manifest.fingerprint])),
            )
            for paths, manifest, files in sorted(artifacts, key=lambda each: each[1].created)
        ),
        leftovers=tuple(leftovers),
    )


def read_by_builders(store: ArtifactStore) -> set[str]:
    """Fingerprints of what builds that are alive now are made from."""
    found: set[str] = set()
    for kind in filter(is_kind, names_in(store.filesystem, store.root)):
        for name in names_in(store.filesystem, f"{store.root}/{kind}"):
            fingerprint = fingerprint_in(name) if name.startswith(".work-") else None
            if fingerprint is not None and _is_held(store, store.paths(kind, fingerprint)):
                found.update(_inputs(store, store.filesystem.find(f"{store.root}/{kind}/{name}")))
    return found


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    num_bytes: int
    modified: datetime


def _groups(store: ArtifactStore) -> Iterator[tuple[ArtifactPaths, str, list[_File]]]:
    """Files of the store by the artifact that they belong to and the entry that they lie in."""
    for kind in names_in(store.filesystem, store.root):
        if not is_kind(kind):
            continue
        folder = f"{store.root}/{kind}"
        by_name: dict[str, list[_File]] = {name: [] for name in names_in(store.filesystem, folder)}
        for path, facts in store.filesystem.find(folder, detail=True).items():
            name = path.removeprefix(f"{folder}/").split("/")[0]
            by_name.setdefault(name, []).append(_File(path, facts["size"] or 0, _date(facts)))
        for name, files in sorted(by_name.items()):
            fingerprint = fingerprint_in(name)
            if fingerprint is not None:
                yield store.paths(kind, fingerprint), name, files


def _leftover(
    store: ArtifactStore, paths: ArtifactPaths, name: str, what: str, files: list[_File]
) -> Entry:
    path = f"{paths.kind_folder}/{name}"
    return Entry(
        paths=paths,
        what=what,
        path=path,
        files=tuple(file.path for file in files),
        num_bytes=sum(file.num_bytes for file in files),
        modified=max((file.modified for file in files), default=_begun(store, path)),
        is_held=_is_held(store, paths),
        inputs=_inputs(store, [file.path for file in files]) if what == "work" else (),
    )


def _begun(store: ArtifactStore, entry: str) -> datetime:
    """When a folder was created: an empty one has no files with dates."""
    try:
        return _date(store.filesystem.info(entry))
    except FileNotFoundError:
        return datetime.now(UTC)  # its build has just ended


def _is_held(store: ArtifactStore, paths: ArtifactPaths) -> bool:
    if paths.is_local and not Path(paths.lock).exists():
        return False
    with unless_building(paths, store.lease_seconds) as is_free:
        return not is_free


def _inputs(store: ArtifactStore, paths: Iterable[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for path in paths:
        if path.endswith(f"/{INPUTS_NAME}"):
            try:
                inputs: Mapping[str, str] = json.loads(store.filesystem.cat_file(path))
            except FileNotFoundError:
                continue  # its build has just ended
            found.update(inputs.values())
    return tuple(sorted(found))


def _date(facts: Mapping[str, Any]) -> datetime:
    value = next((facts[key] for key in _DATES if facts.get(key)), None)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    # In a store without dates everything counts as new.
    return datetime.fromtimestamp(value, UTC) if value else datetime.now(UTC)
