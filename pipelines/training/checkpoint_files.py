"""Checkpoints as files, and their checksums, which are kept.

And publishing the model of the last checkpoint.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem
from pydantic import BaseModel, ConfigDict

from bert_core.model.rows import CODE_FILE
from bert_core.tokenizer_files import SAVED_FILES
from bert_core.training.state import CONFIG_FILE, WEIGHTS_FILE
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.artifacts import sha256_of_file
from pipelines.artifacts.access import write_to_disk
from pipelines.artifacts.draft import Draft

# Inside a checkpoint.
MODEL_FOLDER = "model"  # to resume from
AVERAGED_FOLDER = "averaged"  # the model to publish, where an average of the weights is kept
BEST_FOLDER = "best"  # the model to publish, where the training run stops early
HISTORY_FILE = "history.json"

# What `publish_model` puts into an artifact.
MODEL_FILES = (WEIGHTS_FILE, CONFIG_FILE, *SAVED_FILES, HISTORY_FILE)


class CheckpointFolder(NamedTuple):
    """A folder of a draft as Ray Train takes it: a path and the file system it lies in.

    The next process that builds the same artifact finds the checkpoints there.
    """

    path: str
    filesystem: FileSystem

    @classmethod
    def of(cls, draft: Draft) -> "CheckpointFolder":
        if draft.is_local:
            return cls(draft.work, LocalFileSystem())
        return cls(draft.work, PyFileSystem(FSSpecHandler(draft.filesystem)))


class StoredFile(BaseModel):
    """Size and checksum of a file when it was stored."""

    model_config = ConfigDict(frozen=True)

    size: int  # bytes
    sha256: str


class Checkpoint(BaseModel):
    """A stored checkpoint, as described by its last file."""

    model_config = ConfigDict(frozen=True)

    name: str  # of its folder
    step: int  # all before it are done
    is_regular: bool  # due by its step; a rollback uses no other
    loss: float | None  # held-out, where it was evaluated at that step
    files: dict[str, StoredFile]

    @property
    def num_bytes(self) -> int:
        """Of all its files."""
        return sum(each.size for each in self.files.values())


class DamagedCheckpointError(Exception):
    """A file of a checkpoint differs from what was stored."""


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
    """Raise DamagedCheckpointError for the first of `files` that `folder` lacks or has changed."""
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


def write_whole(filesystem: FileSystem, path: str, text: str) -> None:
    """Write a file whole or not at all; on a local disk it survives a power cut."""
    if isinstance(filesystem, LocalFileSystem):
        write_to_disk(Path(path), text)
        return
    with filesystem.open_output_stream(path) as file:
        file.write(text.encode())


def publish_model(
    draft: Draft, checkpoint: Path, tokenizer: WordPieceTokenizer, result: Mapping[str, Any]
) -> None:
    """Put the model, its tokenizer and its training curve into the artifact.

    The model is the best one, or the average of the weights, where the last checkpoint holds one.
    """
    choices = (BEST_FOLDER, AVERAGED_FOLDER, MODEL_FOLDER)
    folder = next(checkpoint / name for name in choices if (checkpoint / name).is_dir())
    for name in (WEIGHTS_FILE, CONFIG_FILE, CODE_FILE):
        if (folder / name).is_file():
            with draft.file(name) as target:
                shutil.copyfile(folder / name, target.path)
    for name, text in tokenizer.files().items():
        draft.write(name, text.encode())
    draft.write(HISTORY_FILE, json.dumps(result["history"]).encode())
