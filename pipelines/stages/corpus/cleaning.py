"""From raw text to clean sentences: repairs and sentence boundaries."""

import re
import unicodedata
from typing import Final

import blingfire

from pipelines.io.files import BYTE_ORDER_MARK, CONTROL_BYTES

# Vertical tab, form feed and the separators of files, groups and records end a line, that of units
# parts words; other controls part nothing.
_SEPARATORS: Final = bytes.maketrans(b"\x0b\x0c\x1c\x1d\x1e\x1f", b"\n\n\n\n\n ")
_OTHER_CONTROLS: Final = bytes({*CONTROL_BYTES} - {11, 12, *range(28, 32)})
_C1_CONTROLS: Final = re.compile("[\x80-\x84\x86-\x9f]")
_LINE_SEPARATORS: Final = re.compile("[\x85\u2028\u2029]")
_OTHER_SPACE: Final = re.compile(r"[^\S\n ]")
_PARAGRAPH_SEPARATOR: Final = "\u2029"  # where it is, blingfire always ends a sentence
# What ends a sentence in scripts that blingfire does not know: Unicode's Sentence_Break=STerm, and
# the strokes of Tibetan.
SENTENCE_TERMINATORS: Final = "։۔।॥။።፧፨។៕᠃᠉᱾᱿꯫꘎꘏꛳꛷꣎꣏།༎"
_SENTENCE_END: Final = re.compile(rf"([{SENTENCE_TERMINATORS}][\"'”’»)\]]*) +")
# In haste no blank is typed behind a danda, and nothing but a letter of the next sentence follows.
_DANDA_WITHOUT_BLANK: Final = re.compile(r"([।॥])(?=[^\W\d_])")
# '"Really?" he asked.' is one sentence.
_QUOTE_GOES_ON: Final = re.compile("([?!…][\"'”’»])\n(?=[a-z])")
# blingfire ends a Chinese or Japanese sentence before its closing quotes and brackets. After other
# stops ” and ’ may begin a sentence: in Finnish and Swedish they open a quotation.
_STRAY_CLOSING: Final = re.compile("(?<=[。！？｡])\n([”’」』》〉）】〕］｝｣]+) ?")

# Thai, Lao, Tibetan, Burmese; Khmer; Chinese and Japanese.
_NO_BLANKS: Final = "\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
_BREAK_WITHOUT_BLANK: Final = re.compile(f"(?<=[{_NO_BLANKS}])\n(?=[{_NO_BLANKS}])")


def mend(text: str) -> str:
    """Text in NFC with \\n as its only line break and no control characters.

    White space inside a line becomes a single blank.
    """
    data = text.encode("utf-8", "replace")  # an escape may have made half a surrogate pair
    without_controls = data.translate(_SEPARATORS, _OTHER_CONTROLS)
    if without_controls != data or not text.isascii():
        text = without_controls.decode()
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = _LINE_SEPARATORS.sub("\n", text.replace(BYTE_ORDER_MARK, ""))
        text = _OTHER_SPACE.sub(" ", unicodedata.normalize("NFC", _C1_CONTROLS.sub("", text)))
    text = text.replace("\t", " ")
    while "  " in text:
        text = text.replace("  ", " ")
    return text.replace(" \n", "\n").replace("\n ", "\n").strip(" ")


def unwrap(text: str) -> str:
    """Join the lines of each paragraph; only blank lines part them.

    Where a script does without blanks between words, none comes in.
    """
    if not text.isascii():
        text = _BREAK_WITHOUT_BLANK.sub("", text)
    return "\n".join(block.replace("\n", " ") for block in re.split(r"\n{2,}", text.strip()))


def split_sentences(text: str) -> list[str]:
    """Sentences of a clean text; a line break always ends one.

    `text` comes from `mend`: single blanks, \\n for the end of a paragraph.
    """
    if text.isascii():
        sentences = blingfire.text_to_sentences(text.replace("\n", _PARAGRAPH_SEPARATOR))
    else:
        marked = _DANDA_WITHOUT_BLANK.sub(rf"\1{_PARAGRAPH_SEPARATOR}", text)
        marked = _SENTENCE_END.sub(rf"\1{_PARAGRAPH_SEPARATOR}", marked)
        sentences = blingfire.text_to_sentences(marked.replace("\n", _PARAGRAPH_SEPARATOR))
        sentences = _STRAY_CLOSING.sub(r"\1\n", sentences)
    sentences = _QUOTE_GOES_ON.sub(r"\1 ", sentences)
    lines = sentences.replace(_PARAGRAPH_SEPARATOR, "\n").split("\n")
    return [sentence for line in lines if (sentence := line.strip())]
