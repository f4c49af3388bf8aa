"""CoNLL's columns: a word a line, white space between its columns, an empty line after a sentence.

The first column holds the word and the last one its tag, unless the settings say otherwise, in any
number of columns. `-DOCSTART-` lines and comments of Universal Dependencies ("# text = …") are no
words; "# O" is one where O is a tag. Of CoNLL-U's ten columns the lines that stand for several
words together ("1-2 don't") or for none that was written ("8.1") are left out and counted. Where a
file has tabs, they alone part its columns: words with spaces are words.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.records import BadRow
from pipelines.core.reading.text import Tally, refuse_binary, restored
from pipelines.stages.labelled.records import Record, limited, opened
from pipelines.stages.labelled.settings import LabelledFile

_DOCUMENT: Final = "-DOCSTART-"
_HEAD_BYTES: Final = 65536
_CONLL_U_WIDTH: Final = 10
_NO_WORD: Final = re.compile(
    r"\d+[-.]\d+"
)  # a range of words or an empty node, in the first column
_COMMENT: Final = re.compile(r"#\s*[^\s=]+\s*=(\s|$)")  # a key and its value


class _Line(NamedTuple):
    number: int
    text: str
    cells: list[str]
    is_leading: bool  # before the first word of a sentence, and begun like a comment


def conll_records(
    path: str,
    settings: LabelledFile,
    tally: Tally,
    refuse: Callable[[BadRow], None],
    head_bytes: int | None,
) -> Iterator[Record]:
    """Sentences with their words and tags.

    A line that is none is given to `refuse`; its sentence is left out where that returns. Raises
    UserError for a column that no line has.
    """
    sentences = _sentences(path, tally, head_bytes)
    lines = [line for sentence in sentences for line in sentence if not line.is_leading]
    width = len(lines[0].cells) if lines else 0
    tags = {
        _cell(line.cells, settings.label_column, -1, path)
        for line in lines
        if len(line.cells) == width
    }
    # What breaks off at the end of a head is no sentence.
    for sentence in sentences if head_bytes is None else sentences[:-1]:
        words = [
            line
            for line in sentence
            if not line.is_leading or _is_word(line, width, tags, settings, path)
        ]
        fault = next(filter(None, (_fault(line, width, settings, path) for line in words)), None)
        if fault is not None:
            refuse(fault)
        elif words:
            fields = {
                "words": [_cell(line.cells, settings.text_column, 0, path) for line in words],
                "tags": [_cell(line.cells, settings.label_column, -1, path) for line in words],
            }
            yield Record(f"line {words[0].number:,}", "", fields)


def _sentences(path: str, tally: Tally, head_bytes: int | None) -> list[list[_Line]]:
    """The lines between empty ones, and those that the file ends with, however few."""
    with opened(path) as stream:
        head = stream.read(_HEAD_BYTES)
        refuse_binary(head, path)
        stream.seek(0)
        separator = "\t" if b"\t" in head else None
        sentences: list[list[_Line]] = [[]]
        for number, raw in enumerate(limited(stream, head_bytes), start=1):
            text = restored(raw.decode("utf-8-sig", "surrogateescape"), tally.repaired)
            text = text.rstrip("\r\n")
            if not text.strip():
                sentences.append([])
                continue
            if text.startswith(_DOCUMENT):
                continue
            cells = text.split(separator)
            if separator and len(cells) == 1:
                cells = text.split()
            if len(cells) == _CONLL_U_WIDTH and _NO_WORD.fullmatch(cells[0]):
                tally.dropped["ranges of words and empty nodes of CoNLL-U"] += 1
                continue
            is_first = all(line.is_leading for line in sentences[-1])
            is_leading = is_first and text.startswith("# ")
            sentences[-1].append(_Line(number, text, cells, is_leading))
    return sentences


def _is_word(line: _Line, width: int, tags: set[str], settings: LabelledFile, path: str) -> bool:
    """Whether a line that begins like a comment is the word #: with a tag that other words have."""
    if len(line.cells) != width or _COMMENT.match(line.text):
        return False
    return _cell(line.cells, settings.label_column, -1, path) in tags


def _fault(line: _Line, width: int, settings: LabelledFile, path: str) -> BadRow | None:
    """Why a line is none of a sentence; None where it is."""
    if len(line.cells) != width or width < 2:
        found = f"found {len(line.cells)} columns, not {max(2, width)}: {line.text[:60]!r}"
        return BadRow(line.number, "lines with another number of columns", found)
    if not _cell(line.cells, settings.label_column, -1, path):
        found = f"found no tag for its word: {line.text[:60]!r}"
        return BadRow(line.number, "words without a tag", found)
    return None


def _cell(cells: Sequence[str], column: str, usual: int, path: str) -> str:
    if not column:
        return cells[usual].strip()
    if not column.isdecimal() or not 1 <= int(column) <= len(cells):
        raise UserError(
            f"a column of {path} must be told by its number from 1 to {len(cells)}, found "
            f"{column!r}; correct text_column or label_column"
        )
    return cells[int(column) - 1].strip()
