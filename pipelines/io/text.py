"""Bytes to text: UTF-8, UTF-16 by its mark, or the encoding that a setting names; else an error."""

import codecs
import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from pipelines.errors import UserError
from pipelines.io.files import format_suffix, open_binary

# C0 controls but for tab, line feed and carriage return, and DEL. As bytes they are the same in
# UTF-8, where deleting them is the fastest.
CONTROL_BYTES: Final = bytes({*range(32), 127} - {9, 10, 13})
SAMPLE_BYTES: Final = 65536
_FILES_NAMED: Final = 3
_BOMS_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# What holds no plain text, or text with markup that nothing here reads.
_NO_TEXT: Final = {
    kind: suffixes.split()
    for kind, suffixes in {
        "a document of a word processor": ".doc .docx .odt .rtf .pages",
        "a spreadsheet": ".xls .xlsx .ods",
        "a presentation": ".ppt .pptx .odp",
        "an electronic book": ".epub .mobi .azw3",
        "a picture": ".png .jpg .jpeg .gif .tif .tiff .bmp .webp .svg .ps .eps",
        "sound or film": ".mp3 .wav .ogg .flac .mp4 .avi .mkv .mov .webm",
        "an archive": ".zip .tar .tgz .tbz2 .txz .7z .rar",
        "XML": ".xml",
        "JSON, but not an object a line": ".json",
    }.items()
}


@dataclass(slots=True)
class Tally:
    """Counts under their reasons; tallies of parts add up to the tally of the whole."""

    repaired: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    # Of files that were dropped whole, by reason: the first few, for people to look at.
    dropped_files: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.repaired.update(other.repaired)
        self.dropped.update(other.dropped)
        for reason, paths in other.dropped_files.items():
            self.dropped_files[reason] = [*self.dropped_files.get(reason, ()), *paths][
                :_FILES_NAMED
            ]

    def drop_file(self, path: str, reason: str) -> None:
        """Count a file of which nothing can be used."""
        self.add(Tally(dropped=Counter([reason]), dropped_files={reason: [path]}))

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Reasons in alphabetical order, without those that never occurred."""
        found: dict[str, dict[str, Any]] = {
            "repaired": {key: count for key, count in sorted(self.repaired.items()) if count},
            "dropped": {key: count for key, count in sorted(self.dropped.items()) if count},
        }
        if self.dropped_files:
            found["dropped_files"] = dict(sorted(self.dropped_files.items()))
        return found

    @classmethod
    def from_json(cls, counts: dict[str, dict[str, Any]]) -> "Tally":
        return cls(
            repaired=Counter(counts["repaired"]),
            dropped=Counter(counts["dropped"]),
            dropped_files=dict(counts.get("dropped_files", {})),
        )


@contextmanager
def open_text(path: str, encoding: str = "utf-8", *, newline: str = "\n") -> Iterator[TextIO]:
    """The text of a file, in lines that line feeds alone part; see `open` for `newline`.

    Raises UserError for a file that is no text, and for bytes that are not of the encoding.
    """
    with open_binary(path) as stream:
        head = stream.read(SAMPLE_BYTES)
        if not head.startswith(_BOMS_UTF16):
            check_is_text(head, path)
        stream.seek(0)
        named = encoding_of(head, encoding)
        with (
            naming_other_bytes(path, named),
            io.TextIOWrapper(stream, encoding=named, newline=newline) as text,
        ):
            yield text


@contextmanager
def naming_other_bytes(path: str, encoding: str) -> Iterator[None]:
    """Raise UserError, naming the line, where what is read of a file is not of the encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise _not_encoded(path, encoding, _line_of_fault(path, encoding), error) from error


def decoded(data: bytes, path: str, encoding: str = "utf-8", first_line: int = 1) -> str:
    """The text of a part of a file that begins in its line `first_line`; errors as `open_text`."""
    named = encoding_of(data, encoding)
    try:
        return data.decode(named)
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise _not_encoded(path, named, line, error) from error


def encoding_of(head: bytes, encoding: str) -> str:
    """The encoding of a file that begins with `head`: by its byte order mark, else `encoding`."""
    if head.startswith(_BOMS_UTF16):
        return "utf-16"
    return "utf-8-sig" if head.startswith(codecs.BOM_UTF8) else encoding


def _line_of_fault(path: str, encoding: str) -> int | None:
    """The first line that is not of the encoding; None in UTF-16, whose lines no byte parts."""
    with open_binary(path) as stream:
        for number, line in enumerate(stream if encoding != "utf-16" else (), start=1):
            try:
                line.decode(encoding)
            except UnicodeDecodeError:
                return number
    return None


def _not_encoded(path: str, name: str, line: int | None, error: UnicodeDecodeError) -> UserError:
    where = f"line {line:,} of {path}" if line else path
    return UserError(
        f"{where} is not {name.removesuffix('-sig').upper()} (byte 0x"
        f"{error.object[error.start]:02x}); convert the file, or name its encoding with the "
        "setting `encoding`, such as cp1252"
    )


def check_suffix(path: str, read: str) -> None:
    """Raise UserError where a file's name says that it holds no text; `read` says what is read."""
    suffix = format_suffix(path)
    for kind, suffixes in _NO_TEXT.items():
        if suffix in suffixes:
            raise UserError(
                f"{path} is {kind} by its name, which cannot be read: {read}; convert it, or leave "
                "it out, as by a glob such as 'folder/*.csv'"
            )


def check_is_text(data: bytes, name: str) -> None:
    """Raise UserError where the beginning of a file cannot be text, or stands for another file."""
    sample = data[:SAMPLE_BYTES]
    check_is_no_pointer(sample, name)
    if sample.startswith(_BOMS_UTF16):
        raise UserError(f"{name} is UTF-16; convert it to UTF-8, for instance with iconv")
    controls = len(sample) - len(sample.translate(None, CONTROL_BYTES))
    if controls > max(1, len(sample) / 50):
        raise UserError(
            f"{name} is not text: {controls} of its first {len(sample)} bytes are control "
            "characters; leave it out or name its format"
        )


def check_is_no_pointer(head: bytes, name: str) -> None:
    """Raise UserError where Git LFS left a pointer in place of a file's content."""
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        raise UserError(f"{name} is a pointer of Git LFS; fetch the file itself: git lfs pull")
