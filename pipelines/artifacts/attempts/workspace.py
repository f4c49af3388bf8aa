"""A stage's working files: intermediate results, kept until the artifact is published."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.artifacts import Draft, DraftFile


@dataclass(frozen=True, slots=True)
class Workspace:
    """Files beside a draft that are written and kept like its own but never published.

    It pickles, so that tasks on any node share it.
    """

    draft: Draft

    @classmethod
    def of(cls, draft: Draft) -> "Workspace":
        """The working files of the artifact that `draft` becomes."""
        ledger = f"{draft.work}/.ledger-of-work"
        return cls(replace(draft, root=draft.work, ledger=ledger, by_content=False))

    def file(self, name: str) -> AbstractContextManager[DraftFile]:
        """Write `name` whole or not at all, as `Draft.file` does."""
        return self.draft.file(name)

    def finished(self, name: str) -> dict[str, Any] | None:
        """Figures of `name` if it is there and whole, else None."""
        return self.draft.finished(name)

    def mark(self, name: str, **figures: Any) -> None:
        """Remember that the step `name` is done, and what it counted."""
        with self.file(name) as record:
            record.path.touch()
            record.figures.update(figures)

    def read(self, name: str) -> bytes:
        """The bytes of a small file."""
        data: bytes = self.draft.filesystem.cat_file(f"{self.draft.root}/{name}")
        return data

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A local path of the file `name`; what had to be fetched is removed on leaving."""
        path = f"{self.draft.root}/{name}"
        if self.draft.is_local:
            yield Path(path)
            return
        with tempfile.TemporaryDirectory(prefix="bertsmith-") as folder:
            local = Path(folder) / Path(name).name
            self.draft.filesystem.get_file(path, str(local))
            yield local
