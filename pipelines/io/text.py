"""Bytes to text: UTF-8, with other bytes repaired and counted; files that are no text refused."""

import codecs
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pipelines.config.errors import UserError
from pipelines.io.files import format_suffix

# C0 controls but for tab, line feed and carriage return, and DEL. As bytes they are the same in
# UTF-8, where deleting them is the fastest.
CONTROL_BYTES: Final = bytes({*range(32), 127} - {9, 10, 13})
SAMPLE_BYTES: Final = 65536
_FILES_NAMED: Final = 3
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


def decode(data: bytes, counts: Counter[str]) -> str:
    """UTF-8 bytes as text; bytes that are not UTF-8 are read as Windows-1252 and counted."""
    if data.startswith(codecs.BOM_UTF8):
        data = data[len(codecs.BOM_UTF8) :]
        counts["byte order marks"] += 1
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_mixed(data, counts)


def restored(text: str | bytes, counts: Counter[str]) -> str:
    """The text of bytes, or one that was decoded with `surrogateescape`; see `decode`."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    return decode(data, counts)


def restored_in(value: Any, counts: Counter[str]) -> Any:
    """The same for every text of a cell, also in its lists and tables."""
    return with_texts(value, partial(restored, counts=counts))


def with_texts(value: Any, change: Callable[[Any], str]) -> Any:
    """A value whose texts and bytes are changed, but texts in ASCII; keys stay."""
    if isinstance(value, bytes):
        return change(value)
    if isinstance(value, str):
        return value if value.isascii() else change(value)
    if isinstance(value, list):
        return [with_texts(each, change) for each in value]
    if isinstance(value, dict):
        return {name: with_texts(each, change) for name, each in value.items()}
    return value


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
    """Raise UserError where the beginning of a file cannot be text."""
    sample = data[:SAMPLE_BYTES]
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name} is UTF-16; convert it to UTF-8, for instance with iconv")
    controls = len(sample) - len(sample.translate(None, CONTROL_BYTES))
    if controls > max(1, len(sample) / 50):
        raise UserError(
            f"{name} is not text: {controls} of its first {len(sample)} bytes are control "
            "characters; leave it out or name its format"
        )


def _decode_mixed(data: bytes, counts: Counter[str]) -> str:
    def read_as_windows_1252(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        counts["bytes that were not UTF-8"] += error.end - error.start
        bad = error.object[error.start : error.end]
        return bad.decode("cp1252", errors="replace"), error.end

    codecs.register_error("bertsmith.windows_1252", read_as_windows_1252)
    return data.decode("utf-8", errors="bertsmith.windows_1252")
