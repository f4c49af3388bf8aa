"""CoNLL's columns: a word a line, white space between its columns, an empty line after a sentence.

The first column holds the word and the last one its tag, unless the settings say otherwise, in any
number of columns. `-DOCSTART-` lines and comments of Universal Dependencies ("# text = …") are no
words; "# O" is one where O is a tag. Of CoNLL-U's ten columns the lines that stand for several
words together ("1-2 don't") or for none that was written ("8.1") are left out and counted. Where a
file has tabs, they alone part its columns: words with spaces are words.
"""

import re
from collections.abc import Callable, Iterator
from typing import IO, Final, NamedTuple

from pipelines.config.errors import UserError
from pipelines.io.records import BadRow, opened
from pipelines.io.text import Tally, check_is_text, restored
from pipelines.stages.dataset.records import Record
from pipelines.stages.dataset.settings import LabelledFile

_DOCUMENT: Final = "-DOCSTART-"
_HEAD_BYTES: Final = 65536
_CONLL_U_WIDTH: Final = 10
_NO_WORD: Final = re.compile(r"\d+[-.]\d+")  # a range of words or an empty node, in front
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
    if not lines:
        return
    width = len(lines[0].cells)
    word_at, tag_at = (
        _column(column, usual, width, path)
        for column, usual in ((settings.text_column, 0), (settings.label_column, width - 1))
    )
    tags = {line.cells[tag_at].strip() for line in lines if len(line.cells) == width}

    def is_word(line: _Line) -> bool:
        """Not a comment: a line that begins like one is the word # with a tag that others have."""
        if not line.is_leading:
            return True
        is_whole = len(line.cells) == width and not _COMMENT.match(line.text)
        return is_whole and line.cells[tag_at].strip() in tags

    def fault(line: _Line) -> BadRow | None:
        if len(line.cells) != width or width < 2:
            found = f"found {len(line.cells)} columns, not {max(2, width)}: {line.text[:60]!r}"
            return BadRow(line.number, "lines with another number of columns", found)
        if not line.cells[tag_at].strip():
            found = f"found no tag for its word: {line.text[:60]!r}"
            return BadRow(line.number, "words without a tag", found)
        return None

    # What breaks off at the end of a head is no sentence.
    for sentence in sentences if head_bytes is None else sentences[:-1]:
        words = list(filter(is_word, sentence))
        first_fault = next(filter(None, map(fault, words)), None)
        if first_fault is not None:
            refuse(first_fault)
        elif words:
            fields = {
                "words": [line.cells[word_at].strip() for line in words],
                "tags": [line.cells[tag_at].strip() for line in words],
            }
            yield Record(f"line {words[0].number:,}", "", fields)


def _sentences(path: str, tally: Tally, head_bytes: int | None) -> list[list[_Line]]:
    """The lines between empty ones, and those that the file ends with, however few."""
    with opened(path) as stream:
        head = stream.read(_HEAD_BYTES)
        check_is_text(head, path)
        stream.seek(0)
        separator = "\t" if b"\t" in head else None
        sentences: list[list[_Line]] = [[]]
        for number, raw in enumerate(_limited(stream, head_bytes), start=1):
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


def _limited(stream: IO[bytes], head_bytes: int | None) -> Iterator[bytes]:
    """The lines of a stream, or those that begin in its first bytes."""
    num_read = 0
    for line in stream:
        yield line
        num_read += len(line)
        if head_bytes is not None and num_read >= head_bytes:
            return
