"""What a store holds, and removing what is unused."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from filelock import Timeout

from pipelines.errors import UserError
from pipelines.store.access import store_errors_explained
from pipelines.store.artifact import MANIFEST_NAME, Manifest, read_manifest
from pipelines.store.store import INPUTS_NAME, ArtifactStore

# Files of an artifact, and of builds of one: kind, fingerprint.
_PATH = re.compile(r"([a-z][a-z0-9_-]*)/(?:\.(?:draft|work)-)?([0-9a-f]{32})(?:-[^/]*)?/.+")
_DATES = ("LastModified", "mtime", "created", "last_modified", "updated")  # by file system
_LIVE = timedelta(hours=24)  # a build that wrote something since then may still run


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published artifact, or what builds of one left in the store."""

    kind: str
    fingerprint: str
    files: tuple[str, ...]  # paths
    num_bytes: int
    modified: datetime  # of an artifact: when it was published
    inputs: tuple[str, ...]  # fingerprints of what it is made from
    manifest: Manifest | None  # of an artifact


def take_inventory(store: ArtifactStore) -> list[Entry]:
    """Everything in the store, the newest last."""
    groups: defaultdict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    entries: list[Entry] = []
    with store_errors_explained(store.url):
        for path, facts in store.filesystem.find(store.root, detail=True).items():
            if match := _PATH.fullmatch(path.removeprefix(f"{store.root}/")):
                groups[match[1], match[2]][path] = facts
        for (kind, fingerprint), files in groups.items():
            entries.extend(_entries(store, kind, fingerprint, files))
    return sorted(entries, key=lambda entry: entry.modified)


def plan(
    entries: Collection[Entry], in_use: Iterable[str], *, now: datetime, days: float
) -> list[Entry]:
    """What to remove: entries older than `days`, unless used or an input of what is kept.

    `in_use` holds the fingerprints that registered models and runs use. What a build has written
    to within 24 hours is never in the plan, nor what it reads.
    """
    limit = now - timedelta(days=days)

    def is_young(entry: Entry) -> bool:
        return entry.modified > (limit if entry.manifest else min(limit, now - _LIVE))

    waiting = list(in_use)
    for entry in filter(is_young, entries):
        waiting += (entry.fingerprint, *entry.inputs)
    inputs = {entry.fingerprint: entry.inputs for entry in entries if entry.manifest}
    kept: set[str] = set()
    while waiting:
        fingerprint = waiting.pop()
        if fingerprint not in kept:
            kept.add(fingerprint)
            waiting += inputs.get(fingerprint, ())
    return [
        entry
        for entry in entries
        if not is_young(entry) and (entry.manifest is None or entry.fingerprint not in kept)
    ]


def remove_entry(store: ArtifactStore, entry: Entry) -> bool:
    """Remove the files of the entry, the manifest first, so that readers find nothing.

    What is being built stays, and so does what was published since the inventory. Returns whether
    anything went.
    """
    with ExitStack() as stack:
        if store.is_local:
            try:
                stack.enter_context(store.lock_of(entry.kind, entry.fingerprint).acquire(timeout=0))
            except Timeout:
                return False
        published = store.find(entry.kind, entry.fingerprint) if entry.manifest is None else None
        kept = {published.path(name) for name in published.names()} if published else set()
        _remove_files(store, entry.kind, {path for path in entry.files if path not in kept})
    return True


def _remove_files(store: ArtifactStore, kind_name: str, files: Collection[str]) -> None:
    kind = Path(store.root) / kind_name
    for path in sorted(files, key=lambda path: not path.endswith(f"/{MANIFEST_NAME}")):
        with suppress(FileNotFoundError):
            store.filesystem.rm_file(path)
        folder = Path(path).parent
        with suppress(OSError):  # up to the first folder that holds something
            while store.is_local and folder != kind:
                folder.rmdir()
                folder = folder.parent


def _entries(
    store: ArtifactStore, kind: str, fingerprint: str, files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Entry]:
    """The artifact, if its manifest can be read; and what belongs to no artifact."""
    root = f"{store.root}/{kind}/{fingerprint}"
    path = f"{root}/{MANIFEST_NAME}"
    own: set[str] = set()
    if path in files:
        with suppress(FileNotFoundError, UserError):
            manifest = read_manifest(store.filesystem.cat_file(path), path, kind, fingerprint)
            names = (f"{root}/{manifest.path_of(name)}" for name in manifest.files)
            own = {path, *names} & files.keys()
            yield Entry(
                kind=kind,
                fingerprint=fingerprint,
                files=tuple(own),
                num_bytes=sum(files[each]["size"] or 0 for each in own),
                modified=datetime.fromisoformat(manifest.created),
                inputs=tuple(manifest.inputs.values()),
                manifest=manifest,
            )
    leftovers = files.keys() - own
    if leftovers:
        inputs: set[str] = set()
        for each in leftovers:
            if each.endswith(f"/{INPUTS_NAME}"):
                with suppress(FileNotFoundError):  # its build has just ended
                    inputs.update(json.loads(store.filesystem.cat_file(each)).values())
        yield Entry(
            kind=kind,
            fingerprint=fingerprint,
            files=tuple(leftovers),
            num_bytes=sum(files[each]["size"] or 0 for each in leftovers),
            modified=max(_date(files[each]) for each in leftovers),
            inputs=tuple(inputs),
            manifest=None,
        )


def _date(facts: Mapping[str, Any]) -> datetime:
    value = next((facts[key] for key in _DATES if facts.get(key)), None)
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    # In a store without dates everything counts as new.
    return datetime.fromtimestamp(value, UTC) if value else datetime.now(UTC)
