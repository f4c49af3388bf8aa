"""The artifact store: an artifact that exists is looked up, not built again."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from filelock import FileLock, Timeout
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel

from pipelines.store.access import (
    create_only,
    flush,
    flush_folders,
    full_disk_explained,
    open_store,
    remove,
    store_errors_explained,
    write_to_disk,
)
from pipelines.store.artifact import (
    MANIFEST_NAME,
    Artifact,
    Manifest,
    fingerprint_of,
    read_manifest,
)
from pipelines.store.draft import Built, Draft
from pipelines.versions import code_version, library_versions

logger = logging.getLogger(__name__)

INPUTS_NAME: Final = ".inputs.json"  # in a working folder: what its build reads
_REMOTE_FOLDER: Final = "files"  # of an artifact on an object store


class Specification(NamedTuple):
    """What names an artifact: settings as JSON has them, and inputs by their names."""

    kind: str
    version: int
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    fingerprint: str


class ArtifactStore:
    """Artifacts under one fsspec URL: a local folder, or `s3://bucket/prefix` in production.

    An artifact lies in `<kind>/<fingerprint>/`. With `is_patient` it waits a minute or more for an
    object store that is busy or unreachable. Raises UserError if the URL cannot be a store.
    """

    def __init__(self, url: str | Path, *, is_patient: bool = True) -> None:
        self.url = str(url)
        self.filesystem, self.root = open_store(self.url, is_patient=is_patient)

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    def find(self, kind: str, fingerprint: str) -> Artifact | None:
        """The artifact if it was published, else None; UserError for a damaged manifest."""
        root = f"{self.root}/{kind}/{fingerprint}"
        path = f"{root}/{MANIFEST_NAME}"
        try:
            with store_errors_explained(self.url):
                text = self.filesystem.cat_file(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        url = self.filesystem.unstrip_protocol(path).removeprefix("file://")
        return Artifact(read_manifest(text, url, kind, fingerprint), root, self.filesystem)

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

        `build` writes files through the draft and says which, and what it counted. What an
        interrupted build of the same code has finished is used. One process at a time builds a
        given artifact of a local store; others wait and then find it. On an object store two may
        build at once: the first to finish publishes, and the other returns that.
        """
        plain = settings.model_dump(mode="json") if isinstance(settings, BaseModel) else settings
        names = {
            key: value.fingerprint if isinstance(value, Artifact) else value
            for key, value in inputs.items()
        }
        fingerprint = fingerprint_of(kind, version, plain, names)
        existing = self.find(kind, fingerprint)
        if existing is not None:
            return existing
        return self._build(Specification(kind, version, plain, names, fingerprint), build)

    def _build(self, specification: Specification, build: Callable[[Draft], Built]) -> Artifact:
        """Build and publish an artifact that is missing, or return another builder's."""
        kind, version, plain, names, fingerprint = specification
        with full_disk_explained(f"{kind}/{fingerprint}", self.url), self._turn(kind, fingerprint):
            existing = self.find(kind, fingerprint)  # the builder before may have finished it
            if existing is not None:
                return existing
            draft = self._draft(kind, fingerprint, names)
            started = time.perf_counter()
            try:
                built = build(draft)
                manifest = Manifest(
                    kind=kind,
                    version=version,
                    fingerprint=fingerprint,
                    settings=dict(plain),
                    inputs=dict(names),
                    files=draft.records(built.files),
                    statistics=built.statistics,
                    libraries=library_versions(),
                    code_version=code_version(),
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    build_seconds=round(time.perf_counter() - started, 3),
                    folder="" if self.is_local else _REMOTE_FOLDER,
                )
                is_ours = self._publish(manifest)
            except Exception:
                # Another builder may have published, and removed what both used.
                if self.find(kind, fingerprint) is None:
                    raise
                is_ours = False
            published = self.find(kind, fingerprint)
            if published is None:
                raise FileNotFoundError(f"{kind}/{fingerprint} was removed as it was published")
            if not is_ours:
                logger.info("another process has published %s/%s", kind, fingerprint)
                kept = {published.path(name) for name in published.names()}
                for path in {draft.path(name) for name in draft.written} - kept:
                    remove(self.filesystem, path)
            remove(self.filesystem, draft.work)
            return replace(published, reused=not is_ours)

    @contextmanager
    def _turn(self, kind: str, fingerprint: str) -> Iterator[None]:
        """On a local store: the right to build the artifact, once other processes have ended."""
        if not self.is_local:
            yield
            return
        lock = self.lock_of(kind, fingerprint)
        with store_errors_explained(self.url):
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.warning("another process is building %s/%s: waiting", kind, fingerprint)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def lock_of(self, kind: str, fingerprint: str) -> FileLock:
        """What the builder of an artifact holds on a local store; it is free once it has died."""
        return FileLock(Path(self.root) / kind / f".lock-{fingerprint}")

    def _draft(self, kind: str, fingerprint: str, inputs: Mapping[str, str]) -> Draft:
        """The draft that this code builds the artifact in, as an interrupted build left it."""
        root = f"{self.root}/{kind}/{fingerprint}" + ("" if self.is_local else f"/{_REMOTE_FOLDER}")
        work = self._draft_folder(kind, fingerprint)
        draft = Draft(fingerprint, self.filesystem, root, work)
        with store_errors_explained(self.url):
            draft.note(INPUTS_NAME, json.dumps(dict(inputs)))
        return draft

    def _draft_folder(self, kind: str, fingerprint: str) -> str:
        """The working folder of a build by this code."""
        code = hashlib.sha256(code_version().encode()).hexdigest()[:8]
        return f"{self.root}/{kind}/.work-{fingerprint}-{code}"

    def _publish(self, manifest: Manifest) -> bool:
        """Make the files visible as an artifact; False where another builder was first.

        The manifest does that: on a local disk once all that it names is there to stay, on an
        object store as a file that only one builder creates.
        """
        root = f"{self.root}/{manifest.kind}/{manifest.fingerprint}"
        text = manifest.to_json()
        if not self.is_local:
            return create_only(self.filesystem, f"{root}/{MANIFEST_NAME}", text.encode())
        folder = Path(root)
        folder.mkdir(exist_ok=True)
        for path in folder.rglob("*"):  # an earlier build of the draft may have named others
            if path.is_file() and path.relative_to(folder).as_posix() not in manifest.files:
                path.unlink()
        flush_folders(folder)
        flush(folder.parent)
        write_to_disk(folder / MANIFEST_NAME, text)
        return True
