"""An artifact's name, its paths in a store, and its manifest: how it was made, and its files."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipelines.config.errors import UserError

MANIFEST_NAME = "manifest.json"
INPUTS_NAME = ".inputs.json"  # in a working folder: what its builder reads

_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\:]")
_BESIDE = re.compile(r"\.(?:draft|work|lock|aside)-([0-9a-f]{32})(-.*)?")


class ArtifactPaths(NamedTuple):
    """The paths of one artifact in a store, and of what its build uses."""

    filesystem: AbstractFileSystem
    kind: str
    fingerprint: str
    kind_folder: str
    root: str  # the artifact itself, once it is published
    manifest: str  # its existence publishes the artifact
    draft: str  # the artifact while it is built, on a local store
    work: str  # working files; on an object store a folder for each attempt
    lock: str  # held by the one builder of a local store

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)


def paths_of(
    filesystem: AbstractFileSystem, store_root: str, kind: str, fingerprint: str
) -> ArtifactPaths:
    folder = f"{store_root}/{kind}"
    root = f"{folder}/{fingerprint}"
    hidden = (f"{folder}/.{what}-{fingerprint}" for what in ("draft", "work", "lock"))
    return ArtifactPaths(
        filesystem, kind, fingerprint, folder, root, f"{root}/{MANIFEST_NAME}", *hidden
    )


def fingerprint_in(name: str) -> str | None:
    """The fingerprint that an entry of a kind's folder belongs to, if any."""
    match = _BESIDE.fullmatch(name)
    fingerprint = match[1] if match else name
    return fingerprint if is_fingerprint(fingerprint) else None


def is_kind(name: str) -> bool:
    return _KIND.fullmatch(name) is not None


def is_fingerprint(name: str) -> bool:
    return _FINGERPRINT.fullmatch(name) is not None


def check_file_name(name: str) -> str:
    """`name`, if it is a plain relative path.

    Raises ValueError for absolute names, for `..` and for characters that file systems interpret.
    """
    parts = name.split("/")
    if _UNPRINTABLE.search(name) or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"a file name must be relative, with plain parts between single slashes, found {name!r}"
        )
    return name


# Files that this process has verified, with the status by which a change is noticed.
_verified: dict[tuple[str, str], tuple[int, ...]] = {}


def canonical_json(value: Any) -> str:
    """`value` as canonical JSON: sorted keys, no white space, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def fingerprint_of(
    kind: str, version: int, settings: Mapping[str, Any], inputs: Mapping[str, str]
) -> str:
    """Name an artifact by its kind, format version, settings and the fingerprints of its inputs.

    Returns 32 hexadecimal digits (the first 128 bits of a SHA-256).
    """
    recipe = {"kind": kind, "version": version, "settings": settings, "inputs": inputs}
    return hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:32]


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def has_checksum(path: Path, sha256: str) -> bool:
    """Whether the file has the checksum; raises FileNotFoundError where there is none."""
    status = path.stat()
    as_it_is = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if _verified.get((str(path), sha256)) == as_it_is:
        return True
    if sha256_of_file(path) != sha256:
        return False
    _verified[str(path), sha256] = as_it_is
    return True


def _check_published_name(name: str) -> str:
    if name == MANIFEST_NAME:
        raise ValueError(f"{MANIFEST_NAME} is no file of the artifact")
    return check_file_name(name)


FileName = Annotated[str, AfterValidator(_check_published_name)]


class FileRecord(BaseModel):
    """One file of an artifact: its size, its checksum and its writer's figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}\z")
    figures: dict[str, Any] = Field(default_factory=dict)

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` has these bytes now."""
        try:
            return path.stat().st_size == self.bytes and has_checksum(path, self.sha256)
        except FileNotFoundError:
            return False

    def mismatch(self, path: str, num_bytes: int | None, folder: str) -> UserError:
        """The error that names the file at `path`, which has `num_bytes` or is missing."""
        found = "no file" if num_bytes is None else f"{num_bytes} bytes"
        return UserError(
            f"{path} is not the file that its manifest names ({self.bytes} bytes, sha256 "
            f"{self.sha256[:12]}…; found {found}); remove {folder} and run again to rebuild it"
        )


class Manifest(BaseModel):
    """How an artifact was made, and its files. Written last: it publishes the artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    version: int
    fingerprint: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    files: dict[FileName, FileRecord]
    statistics: dict[str, Any]
    libraries: dict[str, str]
    code_version: str
    created: str
    build_seconds: float
    # The attempt that won, on an object store; its files lie in a folder of this name.
    attempt: str = Field(default="", pattern=r"^[0-9A-Za-z-]*\z")

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"

    def path_of(self, name: str) -> str:
        """The path of the file `name`, relative to the manifest's folder."""
        if not self.attempt:
            return name
        return f"{self.attempt}/{path_by_content(name, self.files[name])}"


class DamagedManifestError(UserError):
    """A manifest that is empty or cut off: nothing can be read from it."""


def path_by_content(name: str, record: FileRecord) -> str:
    """A path of `name` that other bytes never get, so a late write changes nothing."""
    return f"{record.sha256[:16]}/{name}"


def read_manifest(text: bytes, paths: ArtifactPaths) -> Manifest:
    """The manifest of `paths`.

    Raises DamagedManifestError where the text is no JSON, and UserError where it is the manifest
    of another artifact or names files that could lie outside of it.
    """
    url = paths.filesystem.unstrip_protocol(paths.manifest).removeprefix("file://")
    try:
        values = json.loads(text)
    except ValueError:
        raise DamagedManifestError(
            f"{url} is damaged ({len(text)} bytes that are no JSON); remove it and run again to "
            "rebuild the artifact"
        ) from None
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(
            f"{url} is not a valid manifest: {where}: {first['msg']}; it was changed or comes "
            "from a newer version: update, or remove its folder"
        ) from None
    if (manifest.kind, manifest.fingerprint) != (paths.kind, paths.fingerprint):
        raise UserError(
            f"{url} is the manifest of another artifact, {manifest.kind}/{manifest.fingerprint}; "
            "remove its folder and run again"
        )
    return manifest
