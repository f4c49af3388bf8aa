"""Where a training run keeps its checkpoints: in its draft, through the store's own file system."""

from typing import Any, NamedTuple

from fsspec import AbstractFileSystem
from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

from pipelines.artifacts.attempts.claims import Claim
from pipelines.artifacts.draft import Draft


class CheckpointFolder(NamedTuple):
    """A folder of a draft as Ray Train takes it: a path and the file system it lies in.

    The next process that goes on with the attempt finds the checkpoints in it again.
    """

    path: str
    filesystem: FileSystem

    @classmethod
    def of(cls, draft: Draft) -> "CheckpointFolder":
        if draft.is_local:
            return cls(draft.work, LocalFileSystem())
        handler = _ClaimedHandler(draft.filesystem, draft.claim)
        return cls(draft.work, PyFileSystem(handler))


class _ClaimedHandler(FSSpecHandler):
    """Writes and removes only as long as the attempt is this builder's.

    A training run that was taken for dead, and goes on in another process, would otherwise remove
    the checkpoints of the one that followed it.
    """

    def __init__(self, filesystem: AbstractFileSystem, claim: Claim | None) -> None:
        super().__init__(filesystem)
        self.claim = claim

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._check()
        return super().open_output_stream(path, metadata)

    def delete_dir(self, path: str) -> None:
        self._check()
        super().delete_dir(path)

    def copy_file(self, src: str, dest: str) -> None:
        self._check()
        super().copy_file(src, dest)

    def delete_file(self, path: str) -> None:
        self._check()
        super().delete_file(path)

    def _check(self) -> None:
        if self.claim is not None:
            self.claim.check()
