"""What the files of a checkpoint must be: their sizes and SHA-256, taken and asked for again."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from pipelines.artifacts import sha256_of_file


class StoredFile(BaseModel):
    """What a file was when it was stored."""

    model_config = ConfigDict(frozen=True)

    size: int  # bytes
    sha256: str


class DamagedCheckpointError(Exception):
    """A file of a checkpoint is not what was stored."""


def files_of(folder: Path) -> dict[str, StoredFile]:
    """Every file below `folder`, by its path from there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): StoredFile(
            size=path.stat().st_size, sha256=sha256_of_file(path)
        )
        for path in paths
    }


def verify(folder: Path, files: dict[str, StoredFile]) -> None:
    """Raise DamagedCheckpointError for the first of `files` that is not in `folder` as it was."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedCheckpointError(f"{name} is missing")
        if path.stat().st_size != expected.size:
            raise DamagedCheckpointError(
                f"{name} has {path.stat().st_size} bytes of {expected.size}"
            )
        if sha256_of_file(path) != expected.sha256:
            raise DamagedCheckpointError(f"{name} has another SHA-256")
