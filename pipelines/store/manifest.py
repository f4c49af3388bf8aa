"""An artifact's name, and its manifest: how it was made, and its files."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from pipelines.config.errors import UserError

MANIFEST_NAME: Final = "manifest.json"

_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\:]")

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


def is_fingerprint(name: str) -> bool:
    """Whether `name` has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(name) is not None


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_file_name(name: str) -> str:
    """`name`, if it is a plain relative path.

    Raises ValueError for absolute names, for `..`, for characters that file systems interpret and
    for the manifest's own name.
    """
    parts = name.split("/")
    if _UNPRINTABLE.search(name) or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"a file name must be relative, with plain parts between single slashes, found {name!r}"
        )
    if name == MANIFEST_NAME:
        raise ValueError(f"{MANIFEST_NAME} is no file of the artifact")
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
        except FileNotFoundError:
            return False
        if status.st_size != self.bytes:
            return False
        key = (str(path), self.sha256)
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if _verified.get(key) == state:
            return True
        try:
            is_same = sha256_of_file(path) == self.sha256
        except FileNotFoundError:
            return False
        if is_same:
            _verified[key] = state
        return is_same

    def mismatch(self, path: str, num_bytes: int | None, folder: str) -> UserError:
        """The error that names the file at `path`, which has `num_bytes` or is missing."""
        present = "no file" if num_bytes is None else f"{num_bytes} bytes"
        return UserError(
            f"{path} is not the file that its manifest names ({self.bytes} bytes, sha256 "
            f"{self.sha256[:12]}…; found {present}); remove {folder} and run again to rebuild it"
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
        default="",
        pattern=r"^[0-9A-Za-z-]*\z",
        validation_alias=AliasChoices("folder", "attempt"),
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
    """The manifest of an artifact, whose text was read from `url`.

    Raises UserError where the text is no manifest, is that of another artifact, or names files that
    could lie outside of it.
    """
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(
            f"{url} is not a valid manifest ({len(text)} bytes; {where}: {first['msg']}): it is "
            "damaged or comes from a newer version; update, or remove its folder and run again to "
            "rebuild the artifact"
        ) from None
    if (manifest.kind, manifest.fingerprint) != (kind, fingerprint):
        raise UserError(
            f"{url} is the manifest of another artifact, {manifest.kind}/{manifest.fingerprint}; "
            "remove its folder and run again"
        )
    return manifest
