"""Files, local and remote: finding, opening and hashing them, and reading their text.

A path is a file, a folder or a glob, local or any URL that fsspec opens. Files that end in .gz,
.bz2, .xz or .zst are opened through their decompressor. Text is UTF-8, UTF-16 by its mark, or of
the encoding that a setting names; anything else is an error.
"""

import codecs
import glob
import hashlib
import io
import lzma
import os
import re
import socket
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, Final, TextIO
from urllib.parse import urlsplit

import fsspec
from fsspec import AbstractFileSystem
from fsspec.compression import zstd
from fsspec.core import url_to_fs

from pipelines.errors import UserError
from pipelines.store import sha256_of_file
from pipelines.store.access import NO_CREDENTIALS, lacks_credentials, store_errors

COMPRESSIONS: Final = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
# C0 controls but for tab, line feed and carriage return, and DEL. As bytes they are the same in
# UTF-8, where deleting them is the fastest.
CONTROL_BYTES: Final = bytes({*range(32), 127} - {9, 10, 13})
SAMPLE_BYTES: Final = 65536
BYTE_ORDER_MARK: Final = "\ufeff"
_LETTERS_OF_UTF8: Final = 10  # fewer may be UTF-8 by chance
_BOMS_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_DECOMPRESSION_ERRORS: Final = (EOFError, OSError, zlib.error, lzma.LZMAError, zstd.ZstdError)
_ANSWER_SECONDS: Final = 5
# How files begin that are text by their bytes, and something else by what they hold.
_MARKUP: Final = {
    "RTF": re.compile(rb"\s*\{\\rtf"),
    "HTML": re.compile(rb"(?i)\s*(<!--.{,200}?-->\s*)?<(!doctype html|html[\s>])", re.DOTALL),
    "XML": re.compile(rb"\s*<(\?xml\s|[a-zA-Z][^<>]*\sxmlns[:=])"),
    "e-mail": re.compile(rb"(?i)(From .*\n)?([\w-]+:.*\n([ \t].*\n)*)*(mime-version|message-id):"),
    "WikiExtractor's output": re.compile(rb"\s*<doc id="),
    "an archive of the web": re.compile(rb"WARC/\d"),
    "subtitles": re.compile(rb"\s*(WEBVTT|1\r?\n\d\d:\d\d:\d\d,\d)"),
    "a dump of a database": re.compile(rb"-- (MySQL|MariaDB|PostgreSQL|SQLite).*dump"),
}
_ISO_2022: Final = re.compile(rb"\x1b(\$[@AB(]|\([BIJ])")


def expand(path: str) -> list[str]:
    """The files that a path, a folder or a glob names, sorted.

    What exists under this very name is no glob, and only what the person wrote is a pattern. Hidden
    files and folders are left out unless the path names them. Raises UserError where there are
    none, for an address that nothing opens, and for what is no regular file.
    """
    filesystem, plain = _opened_by(path)
    if is_local(path):
        files = _local_files(path)
        for file in files:
            require_regular(file)
    else:
        try:
            files = _remote_files(filesystem, plain, path)
        except store_errors() as error:
            if not lacks_credentials(error):
                raise
            raise UserError(f"{path} cannot be read: {NO_CREDENTIALS}") from error
    if not files:
        raise UserError(f"{path} matches no file; check the path")
    return sorted(files)


def _local_files(path: str) -> list[str]:
    written = Path(path.partition("://")[2] or path).expanduser()
    if written.is_dir():
        files = [
            file for file in written.rglob("*")
            if not file.is_dir() and not _has_hidden_part(str(file.relative_to(written)))
        ]  # fmt: skip
    elif os.path.lexists(written):
        files = [written]
    elif glob.has_magic(str(written)):
        # Unlike a Path's own, it takes absolute patterns, and leaves hidden files out.
        files = [Path(match) for match in glob.glob(str(written), recursive=True)]  # noqa: PTH207
        files = [file for file in files if not file.is_dir()]
    else:
        raise UserError(f"{path} does not exist; name a file, a folder or a glob")
    return [os.path.normpath(file.absolute()) for file in files]


def _remote_files(filesystem: AbstractFileSystem, plain: str, path: str) -> list[str]:
    if glob.has_magic(plain) and not filesystem.exists(plain):
        begin = "/".join(takewhile(lambda part: not glob.has_magic(part), plain.split("/")))
        matches = [match for match in filesystem.glob(plain) if not filesystem.isdir(match)]
    elif filesystem.isdir(plain):
        begin, matches = plain, filesystem.find(plain)
    elif filesystem.exists(plain):
        return [path]
    else:
        raise UserError(f"{path} does not exist; name a file, a folder or a glob")
    # An object store marks a folder by an empty object, whose name others begin with.
    folders = {str(parent) for match in matches for parent in PurePosixPath(match).parents}
    protocol = path.partition("://")[0]
    return [
        match if "://" in match else f"{protocol}://{match.removeprefix('/')}"
        for match in matches
        if match.rstrip("/") not in (begin.rstrip("/"), *folders) and not match.endswith("/")
        if not _has_hidden_part(match.removeprefix(begin))
    ]


def _has_hidden_part(path: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(path).parts)


def require_regular(path: str) -> None:
    """Raise UserError unless the local `path` is a readable regular file, after its links."""
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError as error:
        raise UserError(f"{path} cannot be opened ({error.strerror}); check the path") from error
    if "::" in path:
        raise UserError(f"{path} has '::' in it, which joins two addresses; rename it")
    if not stat.S_ISREG(mode):
        raise UserError(
            f"{path} is a folder, a pipe or a device, not a file; write what it holds to a file "
            "first"
        )
    if not os.access(Path(path).expanduser(), os.R_OK):
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
        socket.create_connection((url.hostname, port), timeout=_ANSWER_SECONDS).close()
    except ValueError as error:
        raise UserError(f"{path} is no address ({error}); check it") from error
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
        raise UserError(
            f"{', '.join(paths)} cannot be read ({error}); check the path, the network and your "
            "rights"
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

    Raises UserError, naming the file, where it is no regular file, corrupt, gone or unreadable.
    """
    if is_local(path):
        require_regular(path.partition("://")[2] or path)
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


@contextmanager
def open_text(path: str, encoding: str = "utf-8", *, newline: str = "\n") -> Iterator[TextIO]:
    """The text of a file, in lines that line feeds alone part; see `open` for `newline`.

    Raises UserError for a file that is no text, and for bytes that are not of the encoding.
    """
    with open_binary(path) as stream:
        head = stream.read(SAMPLE_BYTES)
        stream.seek(0)
        named = encoding_of(head, encoding)
        check_is_not_utf8(head, named, path)
        # In UTF-8, whatever it was. Of bytes that do not fit, reading tells with their line.
        check_has_lines(head.decode(named, "ignore").encode(), path)
        with (
            naming_other_bytes(path, named),
            io.TextIOWrapper(stream, encoding=named, newline=newline) as text,
        ):
            yield text


def check_no_mark(line: str, place: str) -> None:
    """Raise UserError for a byte order mark before a line that is not a file's first one."""
    if line.startswith(BYTE_ORDER_MARK):
        raise UserError(
            f"{place} begins with a byte order mark; remove the mark, and the names of the columns "
            "behind it: were files joined?"
        )


@contextmanager
def naming_other_bytes(path: str, encoding: str) -> Iterator[None]:
    """Raise UserError, naming the line, where what is read of a file is not of the encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        line = _line_of_fault(path, encoding)
        where = f"line {line:,} of {path}" if line else path
        raise _not_encoded(where, encoding, error) from error
    except UnicodeError as error:  # such as UTF-16 without a mark
        raise UserError(
            f"{path} cannot be read as {encoding} ({error}); set `encoding` to another one"
        ) from error


def decoded(data: bytes, place: str) -> str:
    """Text in UTF-8, without a mark before it; raises UserError for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_encoded(place, "utf-8", error) from error


def encoding_of(head: bytes, encoding: str) -> str:
    """The encoding of a file that begins with `head`: by its byte order mark, else `encoding`."""
    if head.startswith(_BOMS_UTF16):
        return "utf-16"
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else encoding


def check_is_not_utf8(head: bytes, encoding: str, path: str) -> None:
    """Raise UserError where a file of another named encoding begins with text that is UTF-8."""
    if encoding.startswith(("utf", "ascii")) or head.isascii():
        return
    try:
        # The sample may end within a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return
    if sum(not letter.isascii() for letter in text) >= _LETTERS_OF_UTF8:
        raise UserError(f"{path} is UTF-8 and not {encoding}; leave out the setting `encoding`")


def _line_of_fault(path: str, encoding: str) -> int | None:
    """The first line that is not of the encoding; None in UTF-16, whose lines no byte parts."""
    with open_binary(path) as stream:
        for number, line in enumerate(stream if encoding != "utf-16" else (), start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError:
                return number
    return None


def _not_encoded(where: str, encoding: str, error: UnicodeDecodeError) -> UserError:
    return UserError(
        f"{where} is not {encoding.removesuffix('-sig').upper()} (byte 0x"
        f"{error.object[error.start]:02x}); convert the file, or name its encoding with the "
        "setting `encoding` (of labels --set dataset.source.encoding=cp1252, of a corpus --set "
        "corpus.sources.0.encoding=cp1252; predict: --encoding cp1252): cp1252 is of Western "
        "Europe, cp1251 of Russian, cp932 of Japanese, gb18030 of Chinese"
    )


def check_is_text(data: bytes, name: str) -> None:
    """Raise UserError where the beginning of a file, in UTF-8, cannot be text, or is a pointer."""
    sample = data[:SAMPLE_BYTES]
    check_is_no_pointer(sample, name)
    if _ISO_2022.search(sample):
        raise UserError(f"{name} is of a kind of ISO-2022; name its `encoding`, such as iso2022_jp")
    controls = len(sample) - len(sample.translate(None, CONTROL_BYTES))
    if controls > max(1, len(sample) / 50):
        raise UserError(
            f"{name} is not text: {controls} of its first {len(sample)} bytes are control "
            "characters; leave it out, convert it to UTF-8, or name its `encoding`"
        )


def check_has_lines(data: bytes, name: str) -> None:
    """Raise UserError, as `check_is_text` does, for markup, and where no line feed ends lines."""
    check_is_text(data, name)
    sample = data[:SAMPLE_BYTES]
    for markup, beginning in _MARKUP.items():
        if beginning.match(sample):
            raise UserError(f"{name} is {markup} by its content; write its text alone to a file")
    if b"\r" in sample and b"\n" not in sample:
        raise UserError(
            f"the lines of {name} end in carriage returns alone; convert them to line feeds"
        )


def check_is_no_pointer(head: bytes, name: str) -> None:
    """Raise UserError where Git LFS left a pointer in place of a file's content."""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise UserError(f"{name} is a pointer of Git LFS; fetch the file itself: git lfs pull")
