"""Bytes to clean text: trouble with encodings is mended and counted, never passed on."""

import codecs
import re
import unicodedata
from collections import Counter
from typing import Final

from pipelines.core.errors import UserError

# C0 controls but for tab, line feed and carriage return, and DEL. As bytes they are the same in
# UTF-8, where deleting them is the fastest.
_CONTROL_BYTES: Final = bytes({*range(32), 127} - {9, 10, 13})
_C1_CONTROLS: Final = re.compile("[\x80-\x84\x86-\x9f]")
_LINE_SEPARATORS: Final = re.compile("[\x85\u2028\u2029]")
_OTHER_SPACE: Final = re.compile(r"[^\S\n ]")
_SAMPLE_BYTES: Final = 65536


def decode(data: bytes, counts: Counter[str]) -> str:
    """UTF-8 bytes as text; bytes that are not UTF-8 are read as Windows-1252 and counted."""
    if data.startswith(codecs.BOM_UTF8):
        data = data[len(codecs.BOM_UTF8) :]
        counts["byte order marks"] += 1
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return _decode_mixed(data, counts)


def mend(text: str, counts: Counter[str]) -> str:
    """Text in NFC with \\n as its only line break and no control characters.

    White space inside a line becomes a single blank.
    """
    data = text.encode("utf-8", "replace")  # an escape may have made half a surrogate pair
    without_controls = data.translate(None, _CONTROL_BYTES)
    counts["control characters"] += len(data) - len(without_controls)
    if len(without_controls) < len(data) or not text.isascii():
        text = without_controls.decode()
    carriage_returns = text.count("\r")
    if carriage_returns:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        counts["line breaks with \\r"] += carriage_returns
    if not text.isascii():
        text = _LINE_SEPARATORS.sub("\n", text)
        text, found = _C1_CONTROLS.subn("", text)
        counts["control characters"] += found
        if not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
            counts["texts not in NFC"] += 1
        text = _OTHER_SPACE.sub(" ", text)
    text = text.replace("\t", " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.replace(" \n", "\n").replace("\n ", "\n").strip(" ")


def refuse_binary(data: bytes, name: str) -> None:
    """Raise UserError where the beginning of a file cannot be text."""
    sample = data[:_SAMPLE_BYTES]
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name} must be UTF-8, found UTF-16; convert it, for instance with iconv")
    controls = len(sample) - len(sample.translate(None, _CONTROL_BYTES))
    if controls > len(sample) / 50:
        raise UserError(
            f"{name} must be text, but {controls} of its first {len(sample)} bytes are control "
            "characters, as in a binary file; leave it out or name its format"
        )


def _decode_mixed(data: bytes, counts: Counter[str]) -> str:
    def read_as_windows_1252(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        counts["bytes that were not UTF-8"] += error.end - error.start
        bad = error.object[error.start : error.end]
        return bad.decode("cp1252", errors="replace"), error.end

    codecs.register_error("bertsmith.windows_1252", read_as_windows_1252)
    return data.decode("utf-8", errors="bertsmith.windows_1252")
