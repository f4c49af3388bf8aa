"""Where the things of an artifact lie in a store, and which names may become paths."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

MANIFEST_NAME = "manifest.json"
INPUTS_NAME = ".inputs.json"  # in a working folder: what its builder reads

_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\:]")
_BESIDE = re.compile(r"\.(draft|work|lock|aside)-([0-9a-f]{32})(-.*)?")


@dataclass(frozen=True, slots=True)
class Place:
    """One artifact's place in a store."""

    filesystem: AbstractFileSystem
    store_root: str
    kind: str
    fingerprint: str

    @property
    def is_local(self) -> bool:
        """Whether the store is a folder of this machine."""
        return isinstance(self.filesystem, LocalFileSystem)

    @property
    def kind_folder(self) -> str:
        """Where all artifacts of this kind lie."""
        return f"{self.store_root}/{self.kind}"

    @property
    def root(self) -> str:
        """The artifact itself, once it is published."""
        return f"{self.kind_folder}/{self.fingerprint}"

    @property
    def manifest(self) -> str:
        """The file whose being there publishes it."""
        return f"{self.root}/{MANIFEST_NAME}"

    @property
    def draft(self) -> str:
        """The artifact in the making, on a local store."""
        return f"{self.kind_folder}/.draft-{self.fingerprint}"

    @property
    def work(self) -> str:
        """Working files; on an object store a folder for each attempt."""
        return f"{self.kind_folder}/.work-{self.fingerprint}"

    @property
    def lock(self) -> str:
        """Held by the one builder of a local store."""
        return f"{self.kind_folder}/.lock-{self.fingerprint}"


class Beside(NamedTuple):
    """What the name of something beside the artifacts of a kind says."""

    what: str  # draft, work, lock or aside
    fingerprint: str


def beside(name: str) -> Beside | None:
    """What the hidden entry `name` of a kind's folder is; None for any other."""
    match = _BESIDE.fullmatch(name)
    return Beside(match[1], match[2]) if match else None


def is_kind(name: str) -> bool:
    """Whether `name` can name a kind of artifact."""
    return _KIND.fullmatch(name) is not None


def is_fingerprint(name: str) -> bool:
    """Whether `name` can name an artifact."""
    return _FINGERPRINT.fullmatch(name) is not None


def check_file_name(name: str) -> str:
    """`name`, if it stays inside the folder that it is put into.

    Raises ValueError for absolute names, for `..` and for what a file system reads otherwise.
    """
    parts = name.split("/")
    if _UNPRINTABLE.search(name) or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"a file name must be relative, with plain parts between single slashes, found {name!r}"
        )
    return name
