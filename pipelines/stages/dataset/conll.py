"""CoNLL's columns: a word and its tag a line, an empty line after a sentence.

Tabs separate the columns of a line that has any, and blanks those of the others; no other white
space does. The word is in the first column and the tag in the last, unless the settings name others
by their number. `-DOCSTART-` lines are passed over. CoNLL-U is another format, and refused.
"""

import re
from collections.abc import Iterator
from typing import Final

from pipelines.errors import UserError
from pipelines.io.tables import Skip
from pipelines.io.text import open_text
from pipelines.stages.dataset.settings import LabelledFile

_DOCUMENT: Final = "-DOCSTART-"
_BLANKS: Final = re.compile(" +")
_CONLL_U_WIDTH: Final = 10
_CONLL_U_NUMBER: Final = re.compile(r"\d+([-.]\d+)?")
_COMMENT: Final = re.compile(r"# *\S+ *= ")  # "# sent_id = 1"


def tagged_sentences(
    path: str, settings: LabelledFile, skip: Skip
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Of each sentence the number of its first line, its words and its tags.

    A line that is none goes to `skip`, and its sentence is left out where that returns. Raises
    UserError for a column that the lines do not have, and for CoNLL-U.
    """
    with open_text(path, settings.encoding) as lines:
        width, first, is_whole = 0, 0, True
        word_at = tag_at = 0
        words: list[str] = []
        tags: list[str] = []
        for number, line in enumerate(lines, start=1):
            text = line.strip("\r\n")
            if not text.strip("\t "):
                if words and is_whole:
                    yield first, words, tags
                words, tags, is_whole = [], [], True
                continue
            if text.startswith(_DOCUMENT):
                continue
            cells = text.split("\t") if "\t" in text else _BLANKS.split(text.strip(" "))
            if not width and not _COMMENT.match(text):
                width = len(cells)
                word_at = _column(settings.text_column, 0, width, path)
                tag_at = _column(settings.label_column, width - 1, width, path)
            fault = _fault(text, cells, width, word_at, tag_at, path, number)
            if fault and is_whole:
                skip(number, fault)
                is_whole = False
            elif is_whole:
                first = number if not words else first
                words.append(cells[word_at].strip(" "))
                tags.append(cells[tag_at].strip(" "))
        if words and is_whole:
            yield first, words, tags


def _fault(
    text: str, cells: list[str], width: int, word_at: int, tag_at: int, path: str, number: int
) -> str:
    """What is wrong with a line; nothing, mostly."""
    if _COMMENT.match(text):
        return f"is a comment, of which CoNLL's columns have none: {text[:60]!r}"
    if len(cells) == _CONLL_U_WIDTH and _CONLL_U_NUMBER.fullmatch(cells[0]):
        raise UserError(
            f"line {number:,} of {path} is CoNLL-U; write a file of two columns with the FORM and "
            "the tag of every word, such as its UPOS"
        )
    if len(cells) != width or width < 2:
        return f"has {len(cells)} columns, not {max(2, width)}: {text[:60]!r}"
    if not cells[word_at].strip(" ") or not cells[tag_at].strip(" "):
        return f"has no {'tag' if cells[word_at].strip(' ') else 'word'}: {text[:60]!r}"
    return ""


def _column(named: str, usual: int, width: int, path: str) -> int:
    """The index of a column that is named by its number."""
    if not named:
        return usual
    if not named.isdecimal() or not 1 <= int(named) <= width:
        raise UserError(
            f"columns of {path} are named by their number from 1 to {width}, found {named!r}; "
            "correct text_column or label_column"
        )
    return int(named) - 1
