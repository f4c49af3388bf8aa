"""CoNLL's columns: a word a line, white space between its columns, an empty line after a sentence.

The first column holds the word and the last one its tag, unless the settings say otherwise, in any
number of columns. `-DOCSTART-` lines and comments of Universal Dependencies ("# text = …") are no
words. Where a file has tabs, they alone part its columns: words with spaces are words.
"""

from collections.abc import Iterator

from pipelines.core.errors import UserError
from pipelines.core.reading.text import refuse_binary, restored
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.records import Record, limited, opened
from pipelines.stages.labelled.settings import LabelledFile

_DOCUMENT = "-DOCSTART-"
_HEAD_BYTES = 65536


def conll_records(
    path: str, settings: LabelledFile, tally: Tally, head_bytes: int | None
) -> Iterator[Record]:
    """Sentences with their words and tags; raises UserError, naming the line, for a bad one."""
    with opened(path) as stream:
        head = stream.read(_HEAD_BYTES)
        refuse_binary(head, path)
        stream.seek(0)
        separator = "\t" if b"\t" in head else None
        words: list[str] = []
        tags: list[str] = []
        first_line, width = 0, 0
        for number, raw in enumerate(limited(stream, head_bytes), start=1):
            line = restored(raw.decode("utf-8-sig", "surrogateescape"), tally.repaired)
            line = line.rstrip("\r\n")
            if not line.strip():
                if words:
                    yield Record(f"line {first_line:,}", "", {"words": words, "tags": tags})
                words, tags = [], []
                continue
            if line.startswith(_DOCUMENT) or (not words and line.startswith("# ")):
                continue
            cells = line.split(separator)
            if separator and len(cells) == 1:
                cells = line.split()
            width = width or len(cells)
            if len(cells) != width or width < 2:
                raise UserError(
                    f"line {number:,} of {path} must hold {max(2, width)} columns like those "
                    f"before it, found {len(cells)}: {line[:60]!r}; mend or remove it"
                )
            if not words:
                first_line = number
            words.append(_cell(cells, settings.text_column, 0, path))
            tags.append(_cell(cells, settings.label_column, -1, path))
        if words and head_bytes is None:
            yield Record(f"line {first_line:,}", "", {"words": words, "tags": tags})


def _cell(cells: list[str], column: str, usual: int, path: str) -> str:
    if not column:
        return cells[usual].strip()
    if not column.isdecimal() or not 1 <= int(column) <= len(cells):
        raise UserError(
            f"a column of {path} must be told by its number from 1 to {len(cells)}, found "
            f"{column!r}; correct text_column or label_column"
        )
    return cells[int(column) - 1].strip()
