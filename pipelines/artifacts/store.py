"""The artifact store: an artifact that exists is looked up, not built again."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel

from pipelines.artifacts.access import (
    create_only,
    flush,
    flush_folders,
    full_disk_explained,
    open_store,
    store_errors_explained,
    write_to_disk,
)
from pipelines.artifacts.artifact import Artifact
from pipelines.artifacts.attempt import attempt
from pipelines.artifacts.claims import LEASE_SECONDS, remove
from pipelines.artifacts.code import code_of
from pipelines.artifacts.draft import Built, Draft, keep_only
from pipelines.artifacts.manifest import (
    MANIFEST_NAME,
    ArtifactPaths,
    DamagedManifestError,
    Manifest,
    fingerprint_of,
    paths_of,
    read_manifest,
)
from pipelines.config.versions import code_version, library_versions

logger = logging.getLogger(__name__)


class Building(NamedTuple):
    kind: str
    fingerprint: str


_building: ContextVar[Building | None] = ContextVar("building", default=None)


def being_built() -> Building | None:
    """The artifact that the caller is building, in this context and in copies of it."""
    return _building.get()


@contextmanager
def building(kind: str, fingerprint: str) -> Iterator[None]:
    """Label log lines and figures from the block with the artifact that it builds."""
    token = _building.set(Building(kind, fingerprint))
    try:
        yield
    finally:
        _building.reset(token)


class ArtifactStore:
    """Artifacts under one fsspec URL: a local folder, or `s3://bucket/prefix` in production.

    With `is_patient` it waits a minute or more for an object store that is busy or unreachable.
    Raises UserError if the URL cannot be a store.
    """

    def __init__(
        self,
        url: str | Path,
        *,
        lease_seconds: float = LEASE_SECONDS,
        is_patient: bool = True,
    ) -> None:
        self.url = str(url)
        self.lease_seconds = lease_seconds  # how long a silent builder elsewhere counts as alive
        self.filesystem, self.root = open_store(self.url, is_patient=is_patient)

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    def paths(self, kind: str, fingerprint: str) -> ArtifactPaths:
        return paths_of(self.filesystem, self.root, kind, fingerprint)

    def find(self, kind: str, fingerprint: str) -> Artifact | None:
        """The artifact if it was published, else None.

        Raises UserError where its manifest is damaged or another's, and where the store does not
        answer.
        """
        paths = self.paths(kind, fingerprint)
        try:
            with store_errors_explained(self.url):
                text = self.filesystem.cat_file(paths.manifest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Artifact(read_manifest(text, paths), paths.root, self.filesystem)

    def get_or_build(
        self,
        kind: str,
        *,
        version: int,
        settings: BaseModel | Mapping[str, Any],
        inputs: Mapping[str, Artifact | str],
        build: Callable[[Draft], Built],
    ) -> Artifact:
        """Return the artifact that `settings` and `inputs` name, building it where it is missing.

        `build` writes files through the draft and says which, and what it counted. One process at
        a time builds a given artifact of a local store; others wait and then find it. On an object
        store two may build at once: the first to finish publishes, and the other finds that.
        """
        plain = settings.model_dump(mode="json") if isinstance(settings, BaseModel) else settings
        names = {
            key: value.fingerprint if isinstance(value, Artifact) else value
            for key, value in inputs.items()
        }
        fingerprint = fingerprint_of(kind, version, plain, names)
        found = self._find_to_use(kind, fingerprint)
        if found is not None:
            return found
        paths = self.paths(kind, fingerprint)
        with full_disk_explained(f"{kind}/{fingerprint}", self.url), ExitStack() as stack:
            with store_errors_explained(self.url):
                draft = stack.enter_context(attempt(paths, code_of(build), self.lease_seconds))
            found = self.find(kind, fingerprint)  # another process may have finished it meanwhile
            if found is not None:
                self._withdraw(found, draft)
                return found
            draft.note_inputs(names)
            started = time.perf_counter()
            with building(kind, fingerprint):
                built = build(draft)
            manifest = Manifest(
                kind=kind,
                version=version,
                fingerprint=fingerprint,
                settings=dict(plain),
                inputs=names,
                files=draft.records(built.files),
                statistics=built.statistics,
                libraries=library_versions(),
                code_version=code_version(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                build_seconds=round(time.perf_counter() - started, 3),
                attempt=draft.claim.attempt if draft.claim is not None else "",
            )
            if self.is_local:
                return self._publish_folder(paths, draft, manifest)
            return self._publish_manifest(paths, draft, manifest)

    def _find_to_use(self, kind: str, fingerprint: str) -> Artifact | None:
        """As `find`; a damaged manifest that a local builder repairs counts as missing."""
        try:
            return self.find(kind, fingerprint)
        except DamagedManifestError:
            if not self.is_local:
                raise
            return None

    def _publish_folder(self, paths: ArtifactPaths, draft: Draft, manifest: Manifest) -> Artifact:
        """Make a local draft visible by one rename, after everything in it is on the disk."""
        folder, root = Path(draft.root), Path(paths.root)
        keep_only(folder, manifest.files)
        write_to_disk(folder / MANIFEST_NAME, manifest.to_json())
        flush_folders(folder)
        try:
            folder.rename(root)
        except OSError:
            # A builder that this machine's lock does not reach, on a shared disk, was first.
            found = self.find(paths.kind, paths.fingerprint)
            if found is None:
                raise
            self._withdraw(found, draft)
            return found
        flush(root.parent)
        remove(self.filesystem, draft.work)
        return Artifact(manifest, paths.root, self.filesystem, reused=False)

    def _publish_manifest(self, paths: ArtifactPaths, draft: Draft, manifest: Manifest) -> Artifact:
        """Make an attempt visible by its manifest, which only one attempt can create."""
        assert draft.claim is not None, "an attempt on an object store has a claim"
        draft.claim.check()
        create_only(self.filesystem, paths.manifest, manifest.to_json().encode())
        published = self.find(paths.kind, paths.fingerprint)
        if published is None:
            raise FileNotFoundError(f"{paths.manifest} was removed as soon as it was written")
        if published.manifest.attempt == manifest.attempt:
            return replace(published, reused=False)
        logger.info("another process has published %s/%s", paths.kind, paths.fingerprint)
        self._withdraw(published, draft)
        return published

    def _withdraw(self, published: Artifact, draft: Draft) -> None:
        """Remove what this attempt made: another's artifact is there."""
        if draft.claim is None:
            remove(self.filesystem, draft.work)
            remove(self.filesystem, draft.root)
        elif published.manifest.attempt != draft.claim.attempt:
            remove(self.filesystem, draft.root)
