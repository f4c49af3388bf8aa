"""Whether another process sees a store: a small file that this one writes, for others to find."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fsspec import AbstractFileSystem

from pipelines.artifacts.access import store_errors, store_errors_explained
from pipelines.artifacts.store import ArtifactStore
from pipelines.config.errors import first_line

_PREFIX = ".probe-"  # no kind of artifact has such a name


@dataclass(frozen=True, slots=True)
class Probe:
    """A file of a store that was written a moment ago; it travels to other processes."""

    filesystem: AbstractFileSystem
    path: str
    content: bytes

    def trouble(self) -> str:
        """Why this process cannot use the store, in a few words; empty where it can.

        It reads what the other process wrote, and writes and removes a file of its own.
        """
        own = f"{self.path}-{uuid.uuid4().hex}"
        try:
            if self.filesystem.cat_file(self.path) != self.content:
                return "finds another file there than was written"
            self.filesystem.pipe_file(own, self.content)
            self.filesystem.rm_file(own)
        except FileNotFoundError:
            return "does not see it"
        except store_errors() as error:
            return f"cannot read and write it ({first_line(error)})"
        return ""


@contextmanager
def probe(store: ArtifactStore) -> Iterator[Probe]:
    """A probe in `store` for as long as the block lasts.

    Raises UserError where the store cannot be written.
    """
    name = f"{_PREFIX}{uuid.uuid4().hex}"
    path = f"{store.root}/{name}"
    with store_errors_explained(store.url):
        store.filesystem.makedirs(store.root, exist_ok=True)
        store.filesystem.pipe_file(path, name.encode())
    try:
        yield Probe(store.filesystem, path, name.encode())
    finally:
        with store_errors_explained(store.url):
            store.filesystem.rm_file(path)
