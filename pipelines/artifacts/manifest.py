"""The manifest: what an artifact is, what made it and what each of its files must hash to."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipelines.artifacts.layout import MANIFEST_NAME, Place, check_file_name
from pipelines.core.errors import UserError


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
        """Readable JSON with sorted keys."""
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


def read_manifest(text: bytes, place: Place) -> Manifest:
    """The manifest of `place`.

    Raises DamagedManifestError where the text is no JSON, and UserError where it is the manifest
    of another artifact or names files that could lie outside of it.
    """
    url = place.filesystem.unstrip_protocol(place.manifest).removeprefix("file://")
    try:
        values = json.loads(text)
    except ValueError:
        raise DamagedManifestError(
            f"{url} must be an artifact's manifest, found {len(text)} bytes that are no JSON; "
            "remove this file and run again: the artifact is made anew"
        ) from None
    try:
        manifest = Manifest.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(
            f"{url} must be the manifest of an artifact, found a fault at {where}: {first['msg']}; "
            "it comes from a newer version or was changed: update, or remove its folder"
        ) from None
    if (manifest.kind, manifest.fingerprint) != (place.kind, place.fingerprint):
        raise UserError(
            f"{url} must describe {place.kind}/{place.fingerprint}, found the manifest of "
            f"{manifest.kind}/{manifest.fingerprint}; it was put there by mistake: remove its "
            "folder and run again"
        )
    return manifest
