"""Files, local and remote: finding, hashing and opening them.

A path is a file, a glob or a folder, local or any URL that fsspec knows; files ending in .gz, .bz2,
.xz or .zst are opened through their decompressor.
"""

import hashlib
import lzma
import os
import socket
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Final
from urllib.parse import urlsplit

import fsspec
from fsspec import AbstractFileSystem
from fsspec.compression import zstd
from fsspec.core import url_to_fs

from pipelines.artifacts import sha256_of_file
from pipelines.artifacts.access import NO_CREDENTIALS, lacks_credentials, store_errors
from pipelines.config.errors import UserError

COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_DECOMPRESSION_ERRORS: Final = (
    EOFError,
    OSError,  # gzip.BadGzipFile, and bz2's errors
    zlib.error,
    lzma.LZMAError,
    zstd.ZstdError,
)
_ANSWER_SECONDS: Final = 5
_MAGIC: Final = "*?["
# What Spark, Hive and Delta Lake write beside the data of a folder.
_BOOKKEEPING: Final = (
    "_SUCCESS", "_committed_*", "_started_*", "_metadata", "_common_metadata", "_delta_log",
    "_spark_metadata", "_temporary",
)  # fmt: skip


def expand(path: str) -> list[str]:
    """The files that a path, a folder or a glob names, sorted.

    What exists under this very name is no glob. Hidden files and folders, and what Spark writes
    beside its data, are left out unless the path names them. Raises UserError where there are none,
    for an address that nothing can open, or where one is no regular file: a pipe or a device would
    never end.
    """
    filesystem, plain = _opened_by(path)
    try:
        is_glob = any(character in plain for character in _MAGIC)
        if is_glob and not filesystem.exists(plain):
            matches = [match for match in filesystem.glob(plain) if not filesystem.isdir(match)]
        elif filesystem.isdir(plain):
            matches = filesystem.find(plain)
        elif filesystem.exists(plain) or (is_local(path) and Path(plain).is_symlink()):
            matches = [plain]
        else:
            raise UserError(f"{path} does not exist; name a file, a folder or a glob")
    except store_errors() as error:
        if not lacks_credentials(error):
            raise
        raise UserError(f"{path} cannot be read: {NO_CREDENTIALS}") from error
    found = sorted(match for match in matches if not _is_left_out(match, plain))
    if not found:
        raise UserError(f"{path} matches no file; check the path")
    if is_local(path):
        for match in found:
            require_regular(match)
        return found
    protocol = path.partition("://")[0]
    return [
        match if "://" in match else f"{protocol}://{match.removeprefix('/')}" for match in found
    ]


def _is_left_out(match: str, plain: str) -> bool:
    """Whether it is no data, or in a folder without data, unless `plain` names it."""
    (*folders, name), parts = PurePosixPath(match).parts, PurePosixPath(plain).parts
    unnamed = [folder for folder in folders if not _is_named(folder, parts)]
    if not _is_named(name, parts[-1:]):
        unnamed.append(name)
    return any(map(_holds_no_data, unnamed))


def _is_named(name: str, parts: Sequence[str]) -> bool:
    """Whether one of the parts, itself hidden or Spark's own, is this name or a pattern of it."""
    return any(_holds_no_data(part) and (name == part or fnmatchcase(name, part)) for part in parts)


def _holds_no_data(name: str) -> bool:
    """Whether a file or folder of this name is hidden, or is one of Spark's own."""
    return name.startswith(".") or any(fnmatchcase(name, each) for each in _BOOKKEEPING)


def require_regular(path: str) -> None:
    """Raise UserError unless the local `path` is a readable regular file, after its links."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError as error:
        what = "is a link to nothing" if Path(path).is_symlink() else "does not exist"
        raise UserError(f"{path} {what}; check the path") from error
    except PermissionError as error:
        raise _unreadable(path) from error
    except OSError as error:  # links in a circle, a name that is too long
        raise UserError(f"{path} cannot be opened ({error.strerror}); check the path") from error
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{path} is {_kind_of_file(mode)}, not a file; write what it holds to a file first"
        )
    if not os.access(path, os.R_OK):
        raise _unreadable(path)


def require_answer(path: str) -> None:
    """Raise UserError where the server that a URL names does not answer within seconds."""
    try:
        url = urlsplit(path)
        if url.scheme == "s3":
            url = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
        if url.scheme not in ("http", "https") or url.hostname is None:
            return
        port = url.port or (443 if url.scheme == "https" else 80)
    except ValueError as error:
        raise UserError(f"{path} is no address ({error}); check it") from error
    try:
        socket.create_connection((url.hostname, port), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"{url.hostname}:{port} does not answer ({error.strerror or error}), so {path} cannot "
            "be read; check the address and the network"
        ) from error


@contextmanager
def reached(*paths: str) -> Iterator[None]:
    """Say in a UserError that what `paths` name could not be read, or its server did not give it.

    For a look before a run: within a run the error itself says that trying again may help.
    """
    try:
        yield
    except store_errors() as error:
        where = "path" if all(map(is_local, paths)) else "address, the network"
        raise UserError(
            f"{', '.join(paths)} cannot be read ({error}); check the {where} and your rights"
        ) from error


def is_local(path: str) -> bool:
    return "://" not in path or path.startswith(("file://", "local://"))


def compression_of(path: str) -> str | None:
    return COMPRESSIONS.get(PurePosixPath(without_query(path)).suffix.lower())


def without_query(path: str) -> str:
    """A presigned URL ends with parameters, which name no file and are secret."""
    return path.partition("?")[0] if path.startswith(("http://", "https://")) else path


def format_suffix(path: str) -> str:
    """The suffix that names the format, below that of a compression; in lower case."""
    name = PurePosixPath(without_query(path).lower())
    return PurePosixPath(name.stem).suffix if name.suffix in COMPRESSIONS else name.suffix


@contextmanager
def open_binary(path: str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed.

    Raises UserError, naming the file, where it is corrupt, gone or not to be read.
    """
    compression = compression_of(path)
    try:
        with fsspec.open(path, "rb", compression=compression) as stream:
            yield stream
    except PermissionError as error:
        raise _unreadable(path) from error
    except FileNotFoundError as error:
        raise UserError(f"{path} is gone; it was there when the run began") from error
    except _DECOMPRESSION_ERRORS as error:
        if compression is None:
            raise
        raise UserError(
            f"{path} is not a whole {compression} file ({error}); fetch it again"
        ) from error


def read_head(path: str, num_bytes: int) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed, and whether they are all of it."""
    with open_binary(path) as stream:
        head = stream.read(num_bytes + 1)
    return head[:num_bytes], len(head) <= num_bytes


def size_and_digest(path: str) -> tuple[int, str]:
    """Size of the stored file, and what its bytes are named by.

    That is their SHA-256, or a remote store's own checksum. Raises UserError where it may not be
    read.
    """
    filesystem, plain = _opened_by(path)
    details = filesystem.info(plain)
    size = int(details["size"] or 0)  # a web server need not say it
    try:
        if is_local(path):
            return size, sha256_of_file(Path(plain))
        for key in ("ETag", "etag", "md5Hash", "content_md5", "checksum"):
            if details.get(key):
                return size, f"{details[key]}/{size}"
        with filesystem.open(plain, "rb") as stream:
            return size, hashlib.file_digest(stream, "sha256").hexdigest()
    except PermissionError as error:
        raise _unreadable(path) from error


def _opened_by(path: str) -> tuple[AbstractFileSystem, str]:
    """The file system that opens `path`, and its name there; UserError where there is none."""
    if not path.strip():  # to fsspec that is the current folder
        raise UserError("a path is empty; name a file, a folder or a glob")
    try:
        return url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"{path} cannot be opened ({error}); check it, or fetch the file first"
        ) from error


def _unreadable(path: str) -> UserError:
    return UserError(f"{path} cannot be read; give this user the right to read it")


def _kind_of_file(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a socket" if stat.S_ISSOCK(mode) else "a device"


@contextmanager
def whole_file(path: str, kind: str = "Parquet") -> Iterator[None]:
    """Say in a UserError that the file cannot be read to its end, whatever Arrow calls it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None):
            raise  # of the disk or the network: Arrow's own have neither a kind nor a number
        raise UserError(f"{path} is not a whole {kind} file ({error}); fetch it again") from error
