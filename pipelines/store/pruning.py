"""What a store holds, and removing what is unused."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.errors import UserError
from pipelines.store.access import names_in, store_errors_explained
from pipelines.store.artifact import MANIFEST_NAME, Manifest, is_fingerprint, read_manifest
from pipelines.store.store import INPUTS_NAME, ArtifactStore

_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_UNFINISHED = re.compile(r"\.(?:draft|work|aside)-([0-9a-f]{32})(?:-.*)?")
_DATES = ("LastModified", "mtime", "created", "last_modified", "updated")  # by file system
# On an object store nothing tells whether a builder lives but what it writes.
_LIVE_HOURS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published artifact, or what builds of one left in the store."""

    kind: str
    fingerprint: str
    files: tuple[str, ...]  # paths
    num_bytes: int
    modified: datetime  # of an artifact: when it was published
    inputs: tuple[str, ...]  # fingerprints of what it is made from
    manifest: Manifest | None = None  # of an artifact
    is_held: bool = False  # by a builder that is alive, as far as the store can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything in a store: artifacts, the newest last, and what belongs to none."""

    artifacts: tuple[Entry, ...]
    leftovers: tuple[Entry, ...]

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in (*self.artifacts, *self.leftovers))

    def users(self) -> defaultdict[str, list[str]]:
        """By fingerprint: those of the artifacts that are made from it."""
        users: defaultdict[str, list[str]] = defaultdict(list)
        for entry in self.artifacts:
            for fingerprint in sorted(set(entry.inputs)):
                users[fingerprint].append(entry.fingerprint)
        return users

    def read_by_builders(self) -> set[str]:
        """Fingerprints of what is being built, and of what that is made from."""
        held = [entry for entry in self.leftovers if entry.is_held]
        return {name for entry in held for name in (entry.fingerprint, *entry.inputs)}


def take_inventory(store: ArtifactStore, now: datetime | None = None) -> Inventory:
    """Look through the whole store; nothing is changed.

    On an object store an unfinished artifact counts as being built for 24 hours after its last
    write. Raises UserError where the store does not answer.
    """
    now = now or datetime.now(UTC)
    artifacts: list[Entry] = []
    leftovers: list[Entry] = []
    with store_errors_explained(store.url):
        for kind in names_in(store.filesystem, store.root):
            if not _KIND.fullmatch(kind):
                continue
            for fingerprint, files in sorted(_files_by_fingerprint(store, kind).items()):
                artifact = _artifact(store, kind, fingerprint, files)
                if artifact is not None:
                    artifacts.append(artifact)
                    files = {path: files[path] for path in files.keys() - {*artifact.files}}
                if files:
                    leftovers.append(_leftover(store, kind, fingerprint, files, now))
    artifacts.sort(key=lambda entry: entry.modified)
    return Inventory(artifacts=tuple(artifacts), leftovers=tuple(leftovers))


def plan(
    inventory: Inventory, in_use: Collection[str], *, now: datetime, days: float
) -> list[Entry]:
    """What to remove: entries older than `days`, unless used or an input of what is kept.

    `in_use` holds the fingerprints that registered models and runs use. Nothing that a live
    builder holds or reads is in the plan.
    """
    limit = now - timedelta(days=days)
    inputs = {entry.fingerprint: entry.inputs for entry in inventory.artifacts}
    waiting = [*in_use, *inventory.read_by_builders()]
    waiting += [entry.fingerprint for entry in inventory.artifacts if entry.modified > limit]
    for leftover in inventory.leftovers:
        if leftover.modified > limit:  # it may be resumed, and reads its inputs then
            waiting += leftover.inputs
    kept: set[str] = set()
    while waiting:
        fingerprint = waiting.pop()
        if fingerprint not in kept:
            kept.add(fingerprint)
            waiting.extend(inputs.get(fingerprint, ()))
    unused = [entry for entry in inventory.artifacts if entry.fingerprint not in kept]
    old = [entry for entry in inventory.leftovers if not (entry.is_held or entry.modified > limit)]
    return [*unused, *old]


def carry_out(
    store: ArtifactStore, removals: Iterable[Entry], now: datetime | None = None
) -> list[Entry]:
    """Remove what was planned, except what a builder holds or reads since.

    Returns what was removed.
    """
    done = []
    held = take_inventory(store, now).read_by_builders()
    for entry in removals:
        if entry.fingerprint in held:
            continue
        with store.is_free(entry.kind, entry.fingerprint) as is_free:
            if is_free:
                _remove(store, entry)
                done.append(entry)
    return done


_Files = dict[str, tuple[int, datetime]]  # by path: bytes, and when it was written


def _files_by_fingerprint(store: ArtifactStore, kind: str) -> dict[str, _Files]:
    """Files of a kind's folder by the artifact that they belong to; locks are left out."""
    folder = f"{store.root}/{kind}"
    groups: dict[str, _Files] = defaultdict(dict)
    for path, facts in store.filesystem.find(folder, detail=True).items():
        name = path.removeprefix(f"{folder}/").split("/")[0]
        match = _UNFINISHED.fullmatch(name)
        fingerprint = match[1] if match else name
        if is_fingerprint(fingerprint):
            groups[fingerprint][path] = (facts["size"] or 0, _date(facts))
    return groups


def _artifact(store: ArtifactStore, kind: str, fingerprint: str, files: _Files) -> Entry | None:
    """The published artifact; None where its manifest is missing or cannot be used."""
    root = f"{store.root}/{kind}/{fingerprint}"
    path = f"{root}/{MANIFEST_NAME}"
    if path not in files:
        return None
    try:
        manifest = read_manifest(store.filesystem.cat_file(path), path, kind, fingerprint)
    except (FileNotFoundError, UserError):
        return None
    paths = {path, *(f"{root}/{manifest.path_of(name)}" for name in manifest.files)}
    return Entry(
        kind=kind,
        fingerprint=fingerprint,
        files=tuple(sorted(paths & files.keys())),
        num_bytes=sum(files[path][0] for path in paths & files.keys()),
        modified=datetime.fromisoformat(manifest.created),
        inputs=tuple(manifest.inputs.values()),
        manifest=manifest,
    )


def _leftover(
    store: ArtifactStore, kind: str, fingerprint: str, files: _Files, now: datetime
) -> Entry:
    modified = max(date for _, date in files.values())
    if store.is_local:
        with store.is_free(kind, fingerprint) as is_free:
            is_held = not is_free
    else:
        is_held = modified > now - timedelta(hours=_LIVE_HOURS)
    inputs: set[str] = set()
    for path in files:
        if path.endswith(f"/{INPUTS_NAME}"):
            try:
                inputs.update(json.loads(store.filesystem.cat_file(path)).values())
            except FileNotFoundError:
                continue  # its build has just ended
    return Entry(
        kind=kind,
        fingerprint=fingerprint,
        files=tuple(files),
        num_bytes=sum(num_bytes for num_bytes, _ in files.values()),
        modified=modified,
        inputs=tuple(sorted(inputs)),
        is_held=is_held,
    )


def _remove(store: ArtifactStore, entry: Entry) -> None:
    """Remove the files of the entry, the manifest first, so that readers find nothing."""
    folder = f"{store.root}/{entry.kind}"
    for path in sorted(entry.files, key=lambda path: not path.endswith(f"/{MANIFEST_NAME}")):
        try:
            store.filesystem.rm_file(path)
        except FileNotFoundError:
            continue
        if store.is_local:
            parent = Path(path).parent
            while parent != Path(folder) and not any(parent.iterdir()):
                parent.rmdir()
                parent = parent.parent


def _date(facts: Mapping[str, Any]) -> datetime:
    value = next((facts[key] for key in _DATES if facts.get(key)), None)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    # In a store without dates everything counts as new.
    return datetime.fromtimestamp(value, UTC) if value else datetime.now(UTC)
