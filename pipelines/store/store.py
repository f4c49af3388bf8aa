"""The artifact store: an artifact that exists is looked up, not built again."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel

from pipelines.errors import UserError
from pipelines.store.access import (
    create_only,
    flush,
    flush_folders,
    full_disk_explained,
    names_in,
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
        """The artifact if it was published, else None.

        Raises UserError where its manifest is damaged or another's, and where the store does not
        answer.
        """
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
        with (
            full_disk_explained(f"{kind}/{fingerprint}", self.url),
            self._turn(kind, fingerprint),
        ):
            existing = self.find(kind, fingerprint)  # the builder before may have finished it
            if existing is not None:
                return existing
            draft = self._draft(kind, fingerprint, names)
            started = time.perf_counter()
            try:
                built = build(draft)
                files = draft.records(built.files)
            except Exception:
                # Another builder of an object store may have published, and removed what both used.
                existing = None if self.is_local else self.find(kind, fingerprint)
                if existing is None:
                    raise
                return self._withdraw(draft, existing)
            manifest = Manifest(
                kind=kind,
                version=version,
                fingerprint=fingerprint,
                settings=dict(plain),
                inputs=names,
                files=files,
                statistics=built.statistics,
                libraries=library_versions(),
                code_version=code_version(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                build_seconds=round(time.perf_counter() - started, 3),
                folder="" if self.is_local else _REMOTE_FOLDER,
            )
            publish = self._publish_folder if self.is_local else self._publish_manifest
            return publish(draft, manifest)

    @contextmanager
    def is_free(self, kind: str, fingerprint: str) -> Iterator[bool]:
        """Whether no process builds the artifact; no builder of a local store begins in the block.

        On an object store nobody can know, and the answer is yes.
        """
        lock = self._lock(kind, fingerprint)
        if not self.is_local or not Path(lock.lock_file).exists():
            yield True
            return
        try:
            with lock.acquire(timeout=0):
                yield True
        except Timeout:
            yield False

    def _lock(self, kind: str, fingerprint: str) -> FileLock:
        """The lock of a local store's builders; the system releases it if its process dies."""
        return FileLock(f"{self.root}/{kind}/.lock-{fingerprint}")

    @contextmanager
    def _turn(self, kind: str, fingerprint: str) -> Iterator[None]:
        """On a local store: the right to build the artifact, once other processes have ended."""
        if not self.is_local:
            yield
            return
        folder = Path(self.root) / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the store cannot be written: {folder} cannot be made ({error.strerror}); choose "
                "another store"
            ) from error
        lock = self._lock(kind, fingerprint)
        with store_errors_explained(self.url):
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.warning("another process is building %s/%s: waiting", kind, fingerprint)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _draft(self, kind: str, fingerprint: str, inputs: Mapping[str, str]) -> Draft:
        """The draft that this code builds the artifact in, as an interrupted build left it."""
        folder = f"{self.root}/{kind}"
        code = hashlib.sha256(code_version().encode()).hexdigest()[:8]
        work = f".work-{fingerprint}-{code}"
        root = f"{folder}/{fingerprint}"
        if self.is_local:
            if Path(root).exists():
                raise UserError(
                    f"{root} has no {MANIFEST_NAME} and stands where an artifact is to be "
                    "published; remove it and run again"
                )
            root = f"{folder}/.draft-{fingerprint}-{code}"
            Path(root).mkdir(exist_ok=True)
        else:
            root = f"{root}/{_REMOTE_FOLDER}"
        with store_errors_explained(self.url):
            for name in names_in(self.filesystem, folder):
                if name.startswith(f".work-{fingerprint}") and name != work:
                    logger.warning(
                        "%s/%s was begun by another version of Bertsmith and starts over; "
                        "`bertsmith store prune` removes what that left in %s",
                        kind, fingerprint, name,
                    )  # fmt: skip
            draft = Draft(fingerprint, self.filesystem, root, f"{folder}/{work}")
            draft.note(INPUTS_NAME, json.dumps(dict(inputs)))
        return draft

    def _publish_folder(self, draft: Draft, manifest: Manifest) -> Artifact:
        """Make a local draft visible by one rename, after everything in it is on the disk."""
        folder, root = Path(draft.root), f"{self.root}/{manifest.kind}/{manifest.fingerprint}"
        _keep_only(folder, manifest.files)
        write_to_disk(folder / MANIFEST_NAME, manifest.to_json())
        flush_folders(folder)
        try:
            folder.rename(root)
        except OSError:
            # A builder that this machine's lock does not reach, on a shared disk, was first.
            published = self.find(manifest.kind, manifest.fingerprint)
            if published is None:
                raise
            return self._withdraw(draft, published)
        flush(folder.parent)
        remove(self.filesystem, draft.work)
        return Artifact(manifest, root, self.filesystem, reused=False)

    def _publish_manifest(self, draft: Draft, manifest: Manifest) -> Artifact:
        """Make the files on an object store visible by a manifest that only one builder creates."""
        path = f"{self.root}/{manifest.kind}/{manifest.fingerprint}/{MANIFEST_NAME}"
        is_ours = create_only(self.filesystem, path, manifest.to_json().encode())
        published = self.find(manifest.kind, manifest.fingerprint)
        if published is None:
            raise FileNotFoundError(f"{path} was removed as soon as it was written")
        if not is_ours:
            return self._withdraw(draft, published)
        remove(self.filesystem, draft.work)
        return replace(published, reused=False)

    def _withdraw(self, draft: Draft, published: Artifact) -> Artifact:
        """Remove what this builder made: another one has `published` the artifact."""
        logger.info("another process has published %s/%s", published.kind, published.fingerprint)
        kept = {published.path(name) for name in published.names()}
        for path in {draft.path(name) for name in draft.written} - kept:
            remove(self.filesystem, path)
        remove(self.filesystem, draft.work)
        return published


def _keep_only(folder: Path, names: Iterable[str]) -> None:
    """Remove from `folder` every file not named, and the directories that this empties."""
    kept = {folder / name for name in names}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in kept:
            path.unlink()
