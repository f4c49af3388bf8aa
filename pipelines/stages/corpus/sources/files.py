"""Files of text, wherever they lie: finding them, naming their bytes, opening them.

A path is a file, a glob or a folder, local or any URL that fsspec knows; files ending in .gz, .bz2,
.xz or .zst are opened through their decompressor.
"""

import hashlib
import lzma
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final

import fsspec
import zstandard
from fsspec.core import url_to_fs

from pipelines.artifacts import sha256_of_file
from pipelines.core.errors import UserError
from pipelines.stages.corpus.sources.inputs import InputFile

COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_DECOMPRESSION_ERRORS: Final = (
    EOFError,
    OSError,  # gzip.BadGzipFile, and bz2's errors
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
)


def list_files(paths: Sequence[str], *, label: str | None, splittable: bool) -> list[InputFile]:
    """Every file that `paths` name, in the order of the paths and sorted within each.

    `splittable` says whether the format can be read from the middle; compressed files never can.
    """
    if not paths:
        raise UserError("a source of files must name at least one path, found none; set `paths`")
    found: dict[str, None] = {}
    for path in paths:
        found.update(dict.fromkeys(_expand(path)))
    with ThreadPoolExecutor(8) as pool:  # hashing and remote look-ups leave the interpreter
        return list(pool.map(lambda path: _describe(path, label, splittable), found))


@contextmanager
def open_binary(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed; a corrupt one is named in a UserError."""
    compression = COMPRESSIONS.get(PurePosixPath(_without_query(path)).suffix.lower())
    try:
        with fsspec.open(path, "rb", compression=compression) as stream:
            yield stream
    except PermissionError as error:
        raise UserError(f"{path} must be readable; give read permission to this user") from error
    except FileNotFoundError as error:
        raise UserError(f"{path} must exist, and was there when the run began") from error
    except _DECOMPRESSION_ERRORS as error:
        if compression is None:
            raise
        raise UserError(
            f"{path} must be a whole {compression} file, but it cannot be decompressed "
            f"({error}); fetch it again"
        ) from error


def _expand(path: str) -> list[str]:
    filesystem, plain = url_to_fs(path)
    if any(character in plain for character in "*?["):
        matches = [match for match in filesystem.glob(plain) if filesystem.isfile(match)]
    elif filesystem.isdir(plain):
        matches = filesystem.find(plain)
    elif filesystem.exists(plain):
        matches = [plain]
    else:
        raise UserError(f"{path} must be a file, a folder or a glob, found nothing there")
    visible = sorted(match for match in matches if not PurePosixPath(match).name.startswith("."))
    if not visible:
        raise UserError(f"{path} must match at least one file, found none; check the path")
    protocol = path.split("://", 1)[0] + "://" if "://" in path else ""
    return [
        match
        if "://" in match
        else protocol + match.removeprefix("/")
        if protocol and protocol != "file://"
        else match
        for match in visible
    ]


def _describe(path: str, label: str | None, splittable: bool) -> InputFile:
    filesystem, plain = url_to_fs(path)
    name = PurePosixPath(_without_query(plain)).name
    compressed = PurePosixPath(name).suffix.lower() in COMPRESSIONS
    stem = PurePosixPath(name).stem if compressed else name
    details = filesystem.info(plain)
    try:
        digest = _digest(filesystem, plain, details)
    except PermissionError as error:
        raise UserError(f"{path} must be readable; give read permission to this user") from error
    return InputFile(
        path=path,
        label=label or PurePosixPath(stem).stem,
        num_bytes=int(details["size"]),
        digest=digest,
        splittable=splittable and not compressed,
    )


def _without_query(path: str) -> str:
    """A presigned URL ends with parameters, which name no file and are secret."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


def _digest(filesystem: fsspec.AbstractFileSystem, path: str, details: dict[str, object]) -> str:
    """What the bytes of a file are named by: their SHA-256, or a remote store's own checksum."""
    if "file" in filesystem.protocol:
        return sha256_of_file(Path(path))
    for key in ("ETag", "etag", "md5Hash", "content_md5", "checksum"):
        if details.get(key):
            return f"{details[key]}/{details['size']}"
    with filesystem.open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
