"""Text made clean: one kind of line break, no control characters, NFC; repairs are counted."""

import re
import unicodedata
from collections import Counter
from typing import Final

from pipelines.core.reading.text import CONTROL_BYTES

_C1_CONTROLS: Final = re.compile("[\x80-\x84\x86-\x9f]")
_LINE_SEPARATORS: Final = re.compile("[\x85\u2028\u2029]")
_OTHER_SPACE: Final = re.compile(r"[^\S\n ]")


def mend(text: str, counts: Counter[str]) -> str:
    """Text in NFC with \\n as its only line break and no control characters.

    White space inside a line becomes a single blank.
    """
    data = text.encode("utf-8", "replace")  # an escape may have made half a surrogate pair
    without_controls = data.translate(None, CONTROL_BYTES)
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
