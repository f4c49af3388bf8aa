"""Artifacts: every stage's output, named by what made it, published whole or not at all."""

from pipelines.artifacts.artifact import Artifact
from pipelines.artifacts.draft import Built, Draft, DraftFile, Workspace
from pipelines.artifacts.manifest import FileRecord, Manifest, fingerprint_of, sha256_of_file
from pipelines.artifacts.store import ArtifactStore

__all__ = [
    "Artifact",
    "ArtifactStore",
    "Built",
    "Draft",
    "DraftFile",
    "FileRecord",
    "Manifest",
    "Workspace",
    "fingerprint_of",
    "sha256_of_file",
]
