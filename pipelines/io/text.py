"""Bytes to text: UTF-8, with other bytes repaired and counted; files that are no text refused."""

import codecs
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pipelines.config.errors import UserError

# C0 controls but for tab, line feed and carriage return, and DEL. As bytes they are the same in
# UTF-8, where deleting them is the fastest.
CONTROL_BYTES: Final = bytes({*range(32), 127} - {9, 10, 13})
SAMPLE_BYTES: Final = 65536
_FILES_NAMED: Final = 3


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


def restored(text: str, counts: Counter[str]) -> str:
    """Text that was decoded with `surrogateescape`, its undecodable bytes read as Windows-1252."""
    return decode(text.encode("utf-8", "surrogateescape"), counts)


def restored_in(value: Any, counts: Counter[str]) -> Any:
    """The same for every text of a JSON value."""
    return with_texts(value, partial(restored, counts=counts))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value whose texts are changed, but those in ASCII; keys stay."""
    if isinstance(value, str):
        return value if value.isascii() else change(value)
    if isinstance(value, list):
        return [with_texts(each, change) for each in value]
    if isinstance(value, dict):
        return {name: with_texts(each, change) for name, each in value.items()}
    return value


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
