"""Artifacts: every stage's output, named by what made it, published whole or not at all."""

from pipelines.store.artifact import Artifact, FileRecord, Manifest, fingerprint_of, sha256_of_file
from pipelines.store.draft import Built, Draft, DraftFile, Workspace
from pipelines.store.store import ArtifactStore

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
