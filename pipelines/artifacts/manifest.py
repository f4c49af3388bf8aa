"""The manifest: what an artifact is, what made it and what each of its files must hash to."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MANIFEST_NAME = "manifest.json"


class FileRecord(BaseModel):
    """One file of an artifact: its size, its checksum and what its writer counted in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str
    figures: dict[str, Any] = Field(default_factory=dict)


class Manifest(BaseModel):
    """Written last: an artifact exists for its readers when its manifest does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    version: int
    fingerprint: str
    settings: dict[str, Any]
    inputs: dict[str, str]
    files: dict[str, FileRecord]
    statistics: dict[str, Any]
    libraries: dict[str, str]
    code_version: str
    created: str
    build_seconds: float

    def to_json(self) -> str:
        """Readable JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
