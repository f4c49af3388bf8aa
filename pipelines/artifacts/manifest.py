"""The manifest: what an artifact is, what made it and what each of its files must hash to."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipelines.artifacts.fingerprint import has_checksum
from pipelines.artifacts.layout import MANIFEST_NAME, ArtifactPaths, check_file_name
from pipelines.config.errors import UserError


def _check_published_name(name: str) -> str:
    if name == MANIFEST_NAME:
        raise ValueError(f"{MANIFEST_NAME} is no file of the artifact")
    return check_file_name(name)


FileName = Annotated[str, AfterValidator(_check_published_name)]


class FileRecord(BaseModel):
    """One file of an artifact: its size, its checksum and what its writer counted in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}\z")
    figures: dict[str, Any] = Field(default_factory=dict)

    def matches(self, path: Path) -> bool:
        """Whether the file at `path` has these bytes, as it is now."""
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
    """Written last: an artifact exists for its readers when its manifest does."""

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
        """Where the file `name` lies, from the manifest's own folder."""
        if not self.attempt:
            return name
        return f"{self.attempt}/{path_by_content(name, self.files[name])}"


class DamagedManifestError(UserError):
    """A manifest that is empty or cut off: nothing can be read from it."""


def path_by_content(name: str, record: FileRecord) -> str:
    """A path of `name` that other bytes never take: what lies there once stays as it is."""
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
