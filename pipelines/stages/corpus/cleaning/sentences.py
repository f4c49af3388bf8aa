"""Sentence boundaries, in the scripts that `blingfire` knows and the dandas that it does not."""

import re
from typing import Final

import blingfire

_PARAGRAPH_SEPARATOR: Final = "\u2029"  # where it stands, blingfire always ends a sentence
_DANDA: Final = re.compile(r"([।॥।۔]) +")
# '"Really?" he asked.' is one sentence.
_QUOTE_GOES_ON: Final = re.compile("([?!…][\"'”’»])\n(?=[a-z])")
# blingfire ends a Chinese or Japanese sentence before its closing quotes and brackets.
_STRAY_CLOSING: Final = re.compile("\n([”’」』》）】]+) ?")


def split_sentences(text: str) -> list[str]:
    """Sentences of a clean text; a line break always ends one.

    `text` comes from `repair.mend`: single blanks, \\n for the end of a paragraph.
    """
    if text.isascii():
        found = blingfire.text_to_sentences(text.replace("\n", _PARAGRAPH_SEPARATOR))
    else:
        marked = _DANDA.sub(rf"\1{_PARAGRAPH_SEPARATOR}", text)
        found = blingfire.text_to_sentences(marked.replace("\n", _PARAGRAPH_SEPARATOR))
        found = _STRAY_CLOSING.sub(r"\1\n", found)
    found = _QUOTE_GOES_ON.sub(r"\1 ", found)
    lines = found.replace(_PARAGRAPH_SEPARATOR, "\n").split("\n")
    return [sentence for line in lines if (sentence := line.strip())]
