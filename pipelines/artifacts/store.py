"""The artifact store: asking for what exists is a look-up, whoever asks."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel

from pipelines.artifacts.cache import LocalCache
from pipelines.artifacts.draft import LEDGER_FOLDER, Draft
from pipelines.artifacts.fingerprint import fingerprint_of, sha256_of_file
from pipelines.artifacts.manifest import MANIFEST_NAME, Manifest
from pipelines.core.errors import UserError
from pipelines.core.versions import code_version, library_versions

logger = logging.getLogger(__name__)

# Files this process has hashed already: an artifact never changes once it is published.
_verified: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Artifact:
    """A published artifact: read its files with `local`, its story from `manifest`."""

    manifest: Manifest
    root: str
    filesystem: AbstractFileSystem = field(repr=False, compare=False)
    reused: bool = field(default=True, compare=False)  # False where this very call built it

    @property
    def kind(self) -> str:
        """The stage that made it, such as `corpus`."""
        return self.manifest.kind

    @property
    def fingerprint(self) -> str:
        """Its name: what made it, as 32 hexadecimal digits."""
        return self.manifest.fingerprint

    @property
    def statistics(self) -> dict[str, Any]:
        """What its stage counted."""
        return self.manifest.statistics

    @property
    def url(self) -> str:
        """Where it lies, as a URL or a local path."""
        if isinstance(self.filesystem, LocalFileSystem):
            return self.root
        return str(self.filesystem.unstrip_protocol(self.root))

    def names(self, prefix: str = "") -> list[str]:
        """Names of its files that begin with `prefix`, sorted."""
        return sorted(name for name in self.manifest.files if name.startswith(prefix))

    def local(self, name: str) -> Path:
        """A local path of the file `name`, whose bytes were verified once in this process.

        Raises UserError, naming the file, where size or checksum differ from the manifest.
        """
        if name not in self.manifest.files:
            raise KeyError(f"artifact {self.kind}/{self.fingerprint} has no file {name!r}")
        record = self.manifest.files[name]
        path = f"{self.root}/{name}"
        if isinstance(self.filesystem, LocalFileSystem):
            local = Path(path)
        else:
            local = LocalCache().fetch(self.filesystem, path, record)
        if (str(local), record.sha256) not in _verified:
            found = f"{local.stat().st_size} bytes" if local.exists() else "no file"
            if found != f"{record.bytes} bytes" or sha256_of_file(local) != record.sha256:
                raise UserError(
                    f"{local} must be the {record.bytes} bytes with sha256 {record.sha256[:12]}… "
                    f"that its manifest names, found {found} that do not match; remove the folder "
                    f"{self.root} and run again to rebuild it"
                )
            _verified.add((str(local), record.sha256))
        return local

    def local_folder(self) -> Path:
        """A local folder that holds all its files, verified; for readers that want a directory."""
        paths = [self.local(name) for name in self.names()]
        if isinstance(self.filesystem, LocalFileSystem):
            return Path(self.root)
        return LocalCache().folder(self.fingerprint, dict(zip(self.names(), paths, strict=True)))


class ArtifactStore:
    """Artifacts under one fsspec URL: a local folder, or `s3://bucket/prefix` in production."""

    def __init__(self, url: str | Path) -> None:
        self.url = str(url)
        self.filesystem, root = url_to_fs(self.url)
        self.root = root.rstrip("/")

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    def find(self, kind: str, fingerprint: str) -> Artifact | None:
        """The artifact if it was published, else None."""
        root = f"{self.root}/{kind}/{fingerprint}"
        try:
            text = self.filesystem.cat_file(f"{root}/{MANIFEST_NAME}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Artifact(Manifest.model_validate_json(text), root, self.filesystem)

    def get_or_build(
        self,
        kind: str,
        *,
        version: int,
        settings: BaseModel | Mapping[str, Any],
        inputs: Mapping[str, Artifact | str],
        build: Callable[[Draft], dict[str, Any]],
    ) -> Artifact:
        """Return the artifact that `settings` and `inputs` name, building it where it is missing.

        `build` writes files through the draft and returns the statistics. One process at a time
        builds a given artifact of a local store; others wait and then find it.
        """
        plain = settings.model_dump(mode="json") if isinstance(settings, BaseModel) else settings
        names = {
            key: value.fingerprint if isinstance(value, Artifact) else value
            for key, value in inputs.items()
        }
        fingerprint = fingerprint_of(kind, version, plain, names)
        found = self.find(kind, fingerprint)
        if found is not None:
            return found
        with self._only_builder(kind, fingerprint):
            found = self.find(kind, fingerprint)  # another process may have finished it meanwhile
            if found is not None:
                return found
            draft = self._open_draft(kind, fingerprint)
            started = time.perf_counter()
            statistics = build(draft)
            manifest = Manifest(
                kind=kind,
                version=version,
                fingerprint=fingerprint,
                settings=dict(plain),
                inputs=names,
                files=draft.records(),
                statistics=statistics,
                libraries=library_versions(),
                code_version=code_version(),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                build_seconds=round(time.perf_counter() - started, 3),
            )
            return self._publish(draft, manifest)

    def _open_draft(self, kind: str, fingerprint: str) -> Draft:
        folder = f".draft-{fingerprint}" if self.is_local else fingerprint
        draft = Draft(
            fingerprint=fingerprint,
            filesystem=self.filesystem,
            root=f"{self.root}/{kind}/{folder}",
            work_url=f"{self.url.rstrip('/')}/{kind}/.work-{fingerprint}",
        )
        self.filesystem.makedirs(draft.root, exist_ok=True)
        return draft

    def _publish(self, draft: Draft, manifest: Manifest) -> Artifact:
        """Make the draft visible: the manifest last, and for a local store one rename."""
        root = f"{self.root}/{manifest.kind}/{manifest.fingerprint}"
        if self.is_local:
            _remove_partial_files(Path(draft.root))
            (Path(draft.root) / MANIFEST_NAME).write_text(manifest.to_json())
            Path(draft.root).rename(root)
        else:
            self.filesystem.pipe_file(f"{root}/{MANIFEST_NAME}", manifest.to_json().encode())
        self._remove(f"{root}/{LEDGER_FOLDER}")
        self._remove(f"{self.root}/{manifest.kind}/.work-{manifest.fingerprint}")
        return Artifact(manifest, root, self.filesystem, reused=False)

    def _remove(self, path: str) -> None:
        if self.filesystem.exists(path):
            self.filesystem.rm(path, recursive=True)

    @contextmanager
    def _only_builder(self, kind: str, fingerprint: str) -> Iterator[None]:
        """Keep two processes of one machine from building the same artifact at once.

        An object store has no lock: two builders there write the same bytes, and the last
        manifest wins.
        """
        if not self.is_local:
            yield
            return
        folder = Path(self.root) / kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the store must be a folder that can be written, but {folder} cannot be made "
                f"({error.strerror}); choose another store"
            ) from error
        lock = FileLock(folder / f".lock-{fingerprint}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.warning("another process is building %s/%s: waiting", kind, fingerprint)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


def _remove_partial_files(folder: Path) -> None:
    """Drop what an earlier, killed run left behind in the draft."""
    for partial in sorted(folder.rglob(".partial-*")):
        for path in sorted(partial.rglob("*"), reverse=True):
            path.unlink()
        partial.rmdir()
