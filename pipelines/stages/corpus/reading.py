"""Documents of plain text, tables and data sets.

Text is read block by block, so that no file is too large, and from the middle, too: a span owns the
documents that begin in it. A document longer than `PIECE_BYTES` is passed on in pieces.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pipelines.errors import UserError
from pipelines.io.files import (
    BYTE_ORDER_MARK,
    SAMPLE_BYTES,
    check_has_lines,
    check_is_not_utf8,
    decoded,
    encoding_of,
    naming_other_bytes,
    open_binary,
)
from pipelines.io.hugging_face import rows_of
from pipelines.io.tables import cell_text, is_nothing, json_object, open_parquet, open_table
from pipelines.stages.corpus.cleaning import mend, unwrap
from pipelines.stages.corpus.selection import content_hash
from pipelines.stages.corpus.settings import HuggingFaceDataset, RowSource, TextFiles
from pipelines.stages.corpus.sources import WITHOUT_TEXT, RawDocument, Span, check_columns

PIECE_BYTES: Final = 4 * 2**20
_LONGEST_LINE_BYTES: Final = 256 * 2**20  # of JSON
_BLOCK_BYTES: Final = 2**20
_OVERLAP_BYTES: Final = 4096  # read before a span, to see the boundary that ends where it begins
# What parts two documents. A heading belongs to the document it begins.
# White space in UTF-8: no-break, of U+2000 to U+200A, narrow and ideographic blanks are some, too.
_WHITE: Final = rb"[ \t\r\v\f]|\xc2\xa0|\xe2\x80[\x80-\x8a\xaf]|\xe3\x80\x80"
_BLANK_LINE: Final = re.compile(rb"\n(?:%b)*\n(?:\n|%b)*" % (_WHITE, _WHITE))
_LONGEST_WHITE_BYTES: Final = 3
_JSON_LINE: Final = re.compile(rb"\n+")
_FEWEST_ROWS: Final = 10  # of what may be a table
_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_LATIN_1: Final = re.compile("[\u00c0-\u00ff]+")
_BEGINS_JSON: Final = re.compile(rb'\s*(\{\s*"[^"\n]*"\s*:|\[\s*\{\s*")')
_BOUNDARIES: Final = {
    "file": None,
    "page": None,  # of PDF files alone
    "line": re.compile(rb"[\r\n]+"),
    "blank_line": _BLANK_LINE,
    "sentences": _BLANK_LINE,
    "headings": re.compile(rb"\n(?=[ \t]*= [^=\s][^=\n]* =[ \t\r]*\n)"),
}

Values = Mapping[str, Any]
Read = Callable[[int], bytes]


def read_text(settings: TextFiles, span: Span, dropped: Counter[str]) -> Iterator[RawDocument]:
    """Documents of plain text that begin in `span`.

    Raises UserError, naming file and line, for bytes that are not in the encoding of the source.
    """
    group: str | None = None
    piece = 0
    with _open_as_utf8(span, settings.encoding) as read:
        documents = cut_documents(read, span, _BOUNDARIES[settings.layout])
        for number, (data, continues) in enumerate(documents):
            if continues and group is None:
                group = content_hash(f"{span.file.digest} {span.begin} {number}")
            text = mend(data.decode())
            sentences = None
            if settings.layout == "sentences":
                sentences = tuple(line for line in text.split("\n") if line)
            elif settings.hard_wrapped:
                text = unwrap(text)
            yield RawDocument(text, span.file.label, sentences, group, piece)
            group, piece = (group, piece + 1) if continues else (None, 0)


def read_table(settings: TextFiles, span: Span, dropped: Counter[str]) -> Iterator[RawDocument]:
    """Documents of the rows that begin in `span`; those without text are counted."""
    path = span.file.path
    if span.file.format == "jsonl":
        return _documents(settings, _json_rows(settings, span), span, dropped)
    if span.file.format == "parquet":
        return _documents(settings, _parquet_rows(settings, span), span, dropped)
    table = open_table(path, settings)
    check_columns(settings, table.columns, path)
    return _documents(settings, (row.values for row in table.rows), span, dropped)


def read_dataset(
    settings: HuggingFaceDataset, span: Span, dropped: Counter[str]
) -> Iterator[RawDocument]:
    """Documents of the rows of a data set; those without text are counted."""
    rows, _ = rows_of(settings.dataset, settings.configuration, settings.split, settings.revision)
    return _documents(settings, rows, span, dropped)


def _documents(
    settings: RowSource, rows: Iterable[Values], span: Span, dropped: Counter[str]
) -> Iterator[RawDocument]:
    for values in rows:
        text = values.get(settings.text_field)
        if is_nothing(text):
            dropped[f"{WITHOUT_TEXT} in {settings.text_field!r}"] += 1
            continue
        if not isinstance(text, str | bytes):
            raise UserError(
                f"{settings.text_field!r} of {span.file.path} holds {text!r:.60} in place of a "
                "text; correct it, or name another text_field (--corpus-column)"
            )
        if isinstance(text, bytes):
            text = decoded(text, f"a text of {span.file.path}")
        label = values.get(settings.label_field) if settings.label_field else None
        if isinstance(label, bytes):
            label = decoded(label, f"a label of {span.file.path}")
        yield RawDocument(text=mend(text), label=cell_text(label) or span.file.label)


def _json_rows(settings: TextFiles, span: Span) -> Iterator[Values]:
    path = span.file.path
    with _open_as_utf8(span, settings.encoding) as read:
        for line, _ in cut_documents(read, span, _JSON_LINE, _LONGEST_LINE_BYTES):
            if not line.isspace():
                text = line.decode().removeprefix(BYTE_ORDER_MARK)
                yield json_object(text, f"the line {text[:40]!r} of {path}")


def _parquet_rows(settings: TextFiles, span: Span) -> Iterator[Values]:
    names = [name for name in (settings.text_field, settings.label_field) if name is not None]
    with open_parquet(span.file.path, names, span.owns) as (schema, batches):
        check_columns(settings, schema.names, span.file.path)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in names]
            for values in zip(*columns, strict=True):
                yield dict(zip(names, values, strict=True))


@contextmanager
def _open_as_utf8(span: Span, encoding: str) -> Iterator[Read]:
    """What reads a text file from before `span` on, decompressed and always in UTF-8."""
    path = span.file.path
    with open_binary(path) as stream:
        head = stream.read(SAMPLE_BYTES)
        named = encoding_of(head, encoding)
        check_is_not_utf8(head, named, path)
        stream.seek(_before(span))
        with naming_other_bytes(path, named):
            if named == "utf-8":
                yield stream.read
                return
            # Unlike codecs.EncodedFile it sees a file that ends within a character.
            with io.TextIOWrapper(stream, encoding=named, newline="") as text:
                yield lambda size: text.read(size).encode()


def _before(span: Span) -> int:
    """Where reading begins; any place but the file's beginning is of a file in UTF-8."""
    return max(0, span.begin - _OVERLAP_BYTES)


def cut_documents(
    read: Read,
    span: Span,
    boundary: re.Pattern[bytes] | None,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[tuple[bytes, bool]]:
    """Bytes of each document that begins in `span`, and whether the next bytes continue it.

    `read` gives the file from `_before(span)` on. A document of more than `piece_bytes` comes in
    several pieces.
    """
    offset = _before(span)
    buffer = read(_BLOCK_BYTES)
    if span.begin == 0:
        check_has_lines(buffer, span.file.path)
        if boundary is not _JSON_LINE:
            _check_is_text_alone(buffer[:SAMPLE_BYTES], span.file.path)
    # Where the next document begins in the buffer; the first one of a later span is searched for.
    begin: int | None = None if span.begin else 0
    at_end = False
    while not at_end:
        block = read(_BLOCK_BYTES)
        at_end = not block
        buffer += block
        for match in boundary.finditer(buffer, begin or 0) if boundary else ():
            if len(buffer) - match.end() < _LONGEST_WHITE_BYTES and not at_end:
                break  # the boundary may go on in the next block
            if begin is not None and match.start() > begin:
                yield buffer[begin : match.start()], False
            if offset + match.end() >= span.begin:
                begin = match.end()
                if span.end is not None and offset + begin >= span.end:
                    return
        while begin is not None and len(buffer) - begin > piece_bytes:
            end = _end_of_piece(buffer, begin, piece_bytes)
            yield buffer[begin:end], True
            begin = end
        kept = max(0, len(buffer) - _OVERLAP_BYTES) if begin is None else begin
        buffer, offset = buffer[kept:], offset + kept
        if begin is not None:
            begin = 0
        elif span.end is not None and offset >= span.end:
            return  # no document begins in the span: what follows is the next one's
    if begin is not None and buffer:
        yield buffer, False


def _check_is_text_alone(head: bytes, path: str) -> None:
    """Raise UserError for JSON, a table, and letters of another encoding, named as a text."""
    if _BEGINS_JSON.match(head):
        raise UserError(
            f"{path} is JSON by its content; write an object with a text in each line, to a file "
            "that ends in .jsonl"
        )
    lines = [line for line in head.splitlines()[:-1] if line.strip() and line[:1] != b"#"]
    if len(lines) >= _FEWEST_ROWS and min(map(_count_tabs, lines)) > 0:
        raise UserError(
            f"every line of {path} has a tab: it seems to be a table; rename it to .tsv and name "
            "the column of the text (--corpus-column), or replace the tabs"
        )
    words = _WORD.findall(head.decode(errors="ignore"))
    if len([word for word in words if _LATIN_1.fullmatch(word)]) > max(5, len(words) / 10):
        raise UserError(
            f"{path} has words of accented letters alone, which no language has: name its own "
            "`encoding`, such as cp1251 for Russian"
        )


def _count_tabs(line: bytes) -> int:
    return line.strip(b"\r\n").count(b"\t")


def _end_of_piece(buffer: bytes, begin: int, longest: int) -> int:
    """Where to cut a document that is too long: at a line, else a blank, else between letters."""
    limit = begin + longest
    for mark in (b"\n", b" "):
        position = buffer.rfind(mark, begin + longest // 2, limit)
        if position >= 0:
            return position
    while buffer[limit] & 0xC0 == 0x80:  # not inside a UTF-8 sequence
        limit -= 1
    return limit
