"""Where the things of an artifact lie in a store, and which names may become paths."""

import re
from typing import NamedTuple

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

MANIFEST_NAME = "manifest.json"
INPUTS_NAME = ".inputs.json"  # in a working folder: what its builder reads

_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\\:]")
_BESIDE = re.compile(r"\.(draft|work|lock|aside)-([0-9a-f]{32})(-.*)?")


class ArtifactPaths(NamedTuple):
    """Where one artifact lies in a store, and what belongs to its making."""

    filesystem: AbstractFileSystem
    kind: str
    fingerprint: str
    kind_folder: str
    root: str  # the artifact itself, once it is published
    manifest: str  # the file whose being there publishes it
    draft: str  # the artifact while it is built, on a local store
    work: str  # working files; on an object store a folder for each attempt
    lock: str  # held by the one builder of a local store

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)


def paths_of(
    filesystem: AbstractFileSystem, store_root: str, kind: str, fingerprint: str
) -> ArtifactPaths:
    folder = f"{store_root}/{kind}"
    root = f"{folder}/{fingerprint}"
    hidden = (f"{folder}/.{what}-{fingerprint}" for what in ("draft", "work", "lock"))
    return ArtifactPaths(
        filesystem, kind, fingerprint, folder, root, f"{root}/{MANIFEST_NAME}", *hidden
    )


def what_is(name: str) -> str:
    """What the hidden entry `name` of a kind's folder is: draft, work, lock or aside."""
    match = _BESIDE.fullmatch(name)
    assert match is not None, "a hidden entry of an artifact's"
    return match[1]


def fingerprint_in(name: str) -> str | None:
    """The fingerprint that an entry of a kind's folder belongs to; None where it is none."""
    match = _BESIDE.fullmatch(name)
    fingerprint = match[2] if match else name
    return fingerprint if is_fingerprint(fingerprint) else None


def is_kind(name: str) -> bool:
    return _KIND.fullmatch(name) is not None


def is_fingerprint(name: str) -> bool:
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
