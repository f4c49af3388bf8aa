"""An artifact as its readers see it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from pipelines.store.cache import LocalCache
from pipelines.store.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Artifact:
    """A published artifact: its files through `local`, how it was made in `manifest`."""

    manifest: Manifest
    root: str
    filesystem: AbstractFileSystem = field(repr=False, compare=False)
    reused: bool = field(default=True, compare=False)  # False if this call built it

    @property
    def kind(self) -> str:
        """The stage that made it, such as `corpus`."""
        return self.manifest.kind

    @property
    def fingerprint(self) -> str:
        """Its name: what made it, as 32 hexadecimal digits."""
        return self.manifest.fingerprint

    @property
    def statistics(self) -> dict[str, Any]:
        return self.manifest.statistics

    @property
    def is_local(self) -> bool:
        """Whether its files are files of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def url(self) -> str:
        if self.is_local:
            return self.root
        return str(self.filesystem.unstrip_protocol(self.root))

    @property
    def _is_plain_folder(self) -> bool:
        """Whether its files lie under their own names; not in a copy of an object store."""
        return self.is_local and not self.manifest.folder

    def names(self, prefix: str = "") -> list[str]:
        """Names of its files that begin with `prefix`, sorted."""
        return sorted(name for name in self.manifest.files if name.startswith(prefix))

    def path(self, name: str) -> str:
        """The path of the file `name` in the store."""
        if name not in self.manifest.files:
            raise KeyError(f"artifact {self.kind}/{self.fingerprint} has no file {name!r}")
        return f"{self.root}/{self.manifest.path_of(name)}"

    def local(self, name: str) -> Path:
        """A local path of the file `name`, with verified bytes.

        Raises UserError, naming the file, where size or checksum differ from the manifest.
        """
        path = self.path(name)
        record = self.manifest.files[name]
        if not self._is_plain_folder:
            place = f"{self.manifest.contents}/{name}"
            return LocalCache().fetch(self.filesystem, path, record, place)
        local = Path(path)
        if not record.matches(local):
            num_bytes = local.stat().st_size if local.is_file() else None
            raise record.mismatch(path, num_bytes, f"the folder {self.root}")
        return local

    def local_folder(self) -> Path:
        """A local folder that holds all its files, verified; for readers that want a directory."""
        for name in self.names():
            self.local(name)
        if self._is_plain_folder:
            return Path(self.root)
        return LocalCache().files / self.manifest.contents
