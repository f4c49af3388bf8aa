"""An artifact: its name, its manifest, and its files, verified as they are read."""

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from filelock import FileLock
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from pipelines.errors import UserError
from pipelines.store.access import full_disk_explained

MANIFEST_NAME: Final = "manifest.json"

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\:]")  # in names of files

# Files that this process has verified, with the status by which a change is noticed.
_verified: dict[tuple[str, str], tuple[int, ...]] = {}


def fingerprint_of(
    kind: str, version: int, settings: Mapping[str, Any], inputs: Mapping[str, str]
) -> str:
    """The name of an artifact: 32 hexadecimal digits of a SHA-256 of all that made it."""
    recipe = {"kind": kind, "version": version, "settings": settings, "inputs": inputs}
    canonical = json.dumps(
        recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def is_fingerprint(name: str) -> bool:
    """Whether `name` has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(name) is not None


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_file_name(name: str) -> str:
    """`name`; ValueError if it could lead out of its folder or is the manifest's own."""
    is_plain = not any(part in ("", ".", "..") for part in name.split("/"))
    if not is_plain or _FORBIDDEN.search(name) or name == MANIFEST_NAME:
        raise ValueError(
            f"a file name must be relative, with plain parts between single slashes, got {name!r}"
        )
    return name


class FileRecord(BaseModel):
    """One file of an artifact: its size, its checksum and its writer's figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}\z")
    figures: dict[str, Any] = Field(default_factory=dict)

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` has these bytes now; read once unless it changes."""
        try:
            status = path.stat()
            key = (str(path), self.sha256)
            state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if status.st_size != self.bytes:
                return False
            if _verified.get(key) != state:
                if sha256_of_file(path) != self.sha256:
                    return False
                _verified[key] = state
        except FileNotFoundError:
            return False
        return True

    def mismatch(self, path: str, folder: str) -> UserError:
        """The error that names the file at `path`, which is another one or missing."""
        return UserError(
            f"{path} is missing, or not the file that its manifest names ({self.bytes} bytes, "
            f"sha256 {self.sha256[:12]}…); remove {folder} and run again to rebuild it"
        )


def path_by_content(name: str, record: FileRecord) -> str:
    """A path of `name` that other bytes never get: builders cannot overwrite each other's files."""
    return f"{record.sha256[:16]}/{name}"


class Manifest(BaseModel):
    """How an artifact was made, and its files. Written last: it publishes the artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    version: int
    fingerprint: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    files: dict[Annotated[str, AfterValidator(check_file_name)], FileRecord]
    statistics: dict[str, Any]
    libraries: dict[str, str]
    code_version: str
    created: str
    build_seconds: float
    # On an object store: the folder of its files, which lie below their checksums. Stores of
    # version 0.1.0 call it `attempt`.
    folder: str = Field(
        default="", pattern=r"^[0-9A-Za-z-]*\z", validation_alias=AliasChoices("folder", "attempt")
    )

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"

    @cached_property
    def contents(self) -> str:
        """A name for its files: other names or other bytes have another one."""
        lines = "".join(f"{name}\n{self.files[name].sha256}\n" for name in sorted(self.files))
        return hashlib.sha256(lines.encode()).hexdigest()[:32]

    def path_of(self, name: str) -> str:
        """The path of the file `name`, relative to the manifest's folder."""
        if not self.folder:
            return name
        return f"{self.folder}/{path_by_content(name, self.files[name])}"


def read_manifest(text: bytes, url: str, kind: str, fingerprint: str) -> Manifest:
    """The manifest in `text`, read from `url`; UserError where it is none or is another's."""
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(
            f"{url} is not a valid manifest ({len(text)} bytes; {where}: {first['msg']}): it is "
            "damaged or comes from a newer version; update, or remove its folder and run again"
        ) from None
    if (manifest.kind, manifest.fingerprint) != (kind, fingerprint):
        raise UserError(
            f"{url} is the manifest of another artifact, {manifest.kind}/{manifest.fingerprint}; "
            "remove its folder and run again"
        )
    return manifest


_CACHE_BYTES = 50 * 2**30
_IN_USE_SECONDS = 60.0  # between getting a path and opening it


class LocalCache:
    """Copies of remote files, in folders named by their contents; the least recently used go first.

    The folder is `$BERTSMITH_CACHE` or `~/.cache/bertsmith`, its bound `$BERTSMITH_CACHE_BYTES` or
    50 GiB; files used in the last minute stay beyond it. Any number of processes share it. A file
    that is open or mapped stays readable after it was evicted. Raises UserError where the bound is
    no number.
    """

    def __init__(self) -> None:
        self.root = Path(os.environ.get("BERTSMITH_CACHE") or "~/.cache/bertsmith").expanduser()
        bound = os.environ.get("BERTSMITH_CACHE_BYTES") or str(_CACHE_BYTES)
        if not bound.isdecimal():
            raise UserError(
                f"BERTSMITH_CACHE_BYTES={bound} is not a number of bytes such as {_CACHE_BYTES}; "
                "correct it or unset it"
            )
        self.max_bytes = int(bound)
        self.files = self.root / "files"

    def fetch(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, name: str
    ) -> Path:
        """The local copy of the remote `path`, as `name`; UserError for other bytes."""
        target = self.files / name
        if not _is_kept(target, record):
            # All ranks of a node need it: one downloads it, and the waiting ones then find it.
            with self._lock(record.sha256[:3]):  # never more than 4,096 locks
                while not _is_kept(target, record):
                    self._download(filesystem, path, record, target)
        return target

    def _download(
        self, filesystem: AbstractFileSystem, path: str, record: FileRecord, target: Path
    ) -> None:
        """Fetch a file whose lock is held; what a killed process left of it is overwritten."""
        partial = self.root / "partial" / record.sha256
        for folder in (partial.parent, target.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            place = f"{record.bytes} bytes of the cache (BERTSMITH_CACHE)"
            with full_disk_explained(place, self.root), suppress(FileNotFoundError):
                filesystem.get_file(path, str(partial))
            if not record.matches(partial):
                url = filesystem.unstrip_protocol(path)
                raise record.mismatch(url, "the artifact's folder in the store")
            with self._lock("eviction"):
                self._make_room(record.bytes)
                partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)

    def _lock(self, name: str) -> FileLock:
        """A lock of the cache; the system releases it if its process dies."""
        path = self.root / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path)

    def _make_room(self, num_bytes: int) -> None:
        """Evict the least recently used files; called by one process at a time."""
        statuses = {path: path.stat() for path in self.files.rglob("*") if path.is_file()}
        total = sum(status.st_size for status in statuses.values())
        for path in sorted(statuses, key=lambda path: statuses[path].st_atime):
            is_recent = time.time() - path.stat().st_atime < _IN_USE_SECONDS
            if total + num_bytes <= self.max_bytes or is_recent:
                return
            path.unlink()
            total -= statuses[path].st_size


def _is_kept(path: Path, record: FileRecord) -> bool:
    """Whether the cache has the file; notes first that it is used, so that it stays."""
    try:
        # The time of access says when it was last used; that of change stays the download's.
        with suppress(PermissionError):  # of a file that another user has fetched
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except FileNotFoundError:
        return False
    return record.matches(path)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A published artifact: its files through `local`, how it was made in `manifest`."""

    manifest: Manifest
    root: str
    filesystem: AbstractFileSystem = field(repr=False, compare=False)
    reused: bool = field(default=True, compare=False)  # False if this call built it

    @property
    def kind(self) -> str:
        """What it is, such as `corpus` or `encoder`."""
        return self.manifest.kind

    @property
    def fingerprint(self) -> str:
        """Its name: what made it, as 32 hexadecimal digits."""
        return self.manifest.fingerprint

    @property
    def statistics(self) -> dict[str, Any]:
        return self.manifest.statistics

    @property
    def is_local(self) -> bool:
        """Whether its files are files of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def url(self) -> str:
        if self.is_local:
            return self.root
        return str(self.filesystem.unstrip_protocol(self.root))

    @property
    def _is_plain_folder(self) -> bool:
        """Whether its files lie under their own names; not in a copy of an object store."""
        return self.is_local and not self.manifest.folder

    def names(self, prefix: str = "") -> list[str]:
        """Names of its files that begin with `prefix`, sorted."""
        return sorted(name for name in self.manifest.files if name.startswith(prefix))

    def path(self, name: str) -> str:
        """The path of the file `name` in the store."""
        if name not in self.manifest.files:
            raise KeyError(f"artifact {self.kind}/{self.fingerprint} has no file {name!r}")
        return f"{self.root}/{self.manifest.path_of(name)}"

    def local(self, name: str) -> Path:
        """A local path of the file `name`; UserError where it is not that of the manifest."""
        path = self.path(name)
        record = self.manifest.files[name]
        if not self._is_plain_folder:
            place = f"{self.manifest.contents}/{name}"
            return LocalCache().fetch(self.filesystem, path, record, place)
        if not record.matches(Path(path)):
            raise record.mismatch(path, f"the folder {self.root}")
        return Path(path)

    def local_folder(self) -> Path:
        """A local folder that holds all its files, verified; for readers that want a directory."""
        for name in self.names():
            self.local(name)
        if self._is_plain_folder:
            return Path(self.root)
        return LocalCache().files / self.manifest.contents
