"""Documents of plain text files, read block by block so that no file is too large.

A file can be read from the middle: a span owns the documents that begin in it. A document longer
than `PIECE_BYTES` is passed on in pieces.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Final

from pipelines.config.errors import redacted
from pipelines.io.files import open_binary, read_head
from pipelines.io.text import Tally, check_is_text, decode
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.duplicates import content_hash
from pipelines.stages.corpus.settings import PlainText
from pipelines.stages.corpus.sources.inputs import (
    InputFile,
    RawDocument,
    Resolved,
    Span,
    list_files,
)
from pipelines.stages.corpus.sources.layouts import (
    HEAD_BYTES,
    Shape,
    are_hard_wrapped,
    measure,
    recognize,
)

PIECE_BYTES: Final = 4 * 2**20
_BLOCK_BYTES: Final = 2**20
_OVERLAP_BYTES: Final = 4096  # read before a span, to see the boundary that ends where it begins
# What parts two documents. A heading belongs to the document it begins.
_BLANK_LINE: Final = re.compile(rb"\n[ \t\r]*\n\s*")
_NO_BLANKS: Final = "\u0e00-\u0eff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
_BREAK_WITHOUT_BLANK: Final = re.compile(f"(?<=[{_NO_BLANKS}])\n(?=[{_NO_BLANKS}])")
_BY_THE_LINE: Final = ("line", "sentences")  # layouts in which a line is never a part of one
_BOUNDARIES: Final = {
    "file": None,
    "line": re.compile(rb"[\r\n]+"),
    "blank_line": _BLANK_LINE,
    "sentences": _BLANK_LINE,
    "headings": re.compile(rb"\n(?=[ \t]*= [^=\s][^=\n]* =[ \t\r]*\n)"),
}


def resolve(settings: PlainText) -> Resolved:
    """The layout resolved, the files that the source names, and what was found out about them."""
    files = list_files(settings.paths, label=settings.name, splittable=True)
    asks_wrapping = settings.hard_wrapped is None and settings.layout not in _BY_THE_LINE
    shapes: list[Shape] = []
    if settings.layout == "auto" or asks_wrapping:
        with ThreadPoolExecutor(8) as pool:
            shapes = list(pool.map(_shape, files))
    notes: list[str] = []
    if settings.layout == "auto":
        layout, reason = recognize(shapes)
        settings = settings.model_copy(update={"layout": layout})
        notes.append(f"layout {layout} ({reason})")
    wrapped = [bool(settings.hard_wrapped)] * len(files)
    if settings.layout in _BY_THE_LINE:
        wrapped = [False] * len(files)
    elif settings.hard_wrapped is None:
        wrapped = are_hard_wrapped(shapes)
        notes.append(
            f"lines were broken to fit a page in {sum(wrapped):,} of {len(files):,} files and are "
            "joined up to a blank line"
            if any(wrapped)
            else "no lines were broken to fit a page"
        )
    splittable = settings.layout != "file"
    files = [
        replace(file, hard_wrapped=is_wrapped, splittable=file.splittable and splittable)
        for file, is_wrapped in zip(files, wrapped, strict=True)
    ]
    others = f" and {len(settings.paths) - 1:,} more" if len(settings.paths) > 1 else ""
    note = f"{redacted(settings.paths[0])}{others}: {'; '.join(notes)}" if notes else ""
    return Resolved(settings, files, note)


def count_documents(
    settings: PlainText, paths: Sequence[str], min_characters: int
) -> list[int | None]:
    """Documents in each file, from its head; None where more of a file may follow.

    Raises UserError for a file that is no text.
    """
    heads = [read_head(path, HEAD_BYTES) for path in paths]
    for path, (head, _) in zip(paths, heads, strict=True):
        check_is_text(head, path)
    layout = settings.layout
    if layout == "auto":
        layout = recognize([measure(head, is_whole=is_whole) for head, is_whole in heads]).layout
    boundary = _BOUNDARIES[layout]
    if boundary is None:
        return [int(len(head.strip()) >= min_characters) for head, _ in heads]
    return [
        sum(len(text.strip()) >= min_characters for text in boundary.split(head))
        if is_whole
        else None
        for head, is_whole in heads
    ]


def _shape(file: InputFile) -> Shape:
    head, is_whole = read_head(file.path, HEAD_BYTES)
    return measure(head, is_whole=is_whole)


def read(settings: PlainText, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents that begin in `span`."""
    group: str | None = None
    piece = 0
    with open_binary(span.file.path) as stream:
        documents = cut_documents(stream, span, _BOUNDARIES[settings.layout])
        for number, (data, continues) in enumerate(documents):
            if continues and group is None:
                group = content_hash(f"{span.file.digest} {span.begin} {number}")
            text = mend(decode(data, tally.repaired), tally.repaired)
            sentences = None
            if settings.layout == "sentences":
                sentences = tuple(line for line in text.split("\n") if line)
            elif span.file.hard_wrapped:
                text = unwrap(text)
            yield RawDocument(text, span.file.label, sentences, group, piece)
            group, piece = (group, piece + 1) if continues else (None, 0)


def cut_documents(
    stream: IO[bytes],
    span: Span,
    boundary: re.Pattern[bytes] | None,
    piece_bytes: int | None = None,
) -> Iterator[tuple[bytes, bool]]:
    """Bytes of each document that begins in `span`, and whether the next bytes continue it.

    A document of more than `piece_bytes` (`PIECE_BYTES` if left out) comes in several pieces.
    """
    longest = piece_bytes or PIECE_BYTES
    offset = max(0, span.begin - _OVERLAP_BYTES)
    if offset:
        stream.seek(offset)
    buffer = stream.read(_BLOCK_BYTES)
    if span.begin == 0:
        check_is_text(buffer, span.file.path)
    # Where the next document begins in the buffer; the first one of a later span is searched for.
    begin: int | None = None if span.begin else 0
    at_end = False
    while not at_end:
        block = stream.read(_BLOCK_BYTES)
        at_end = not block
        buffer += block
        for match in boundary.finditer(buffer, begin or 0) if boundary else ():
            if match.end() == len(buffer) and not at_end:
                break  # the boundary may go on in the next block
            if begin is not None and match.start() > begin:
                yield buffer[begin : match.start()], False
            if offset + match.end() >= span.begin:
                begin = match.end()
                if span.end is not None and offset + begin >= span.end:
                    return
        while begin is not None and len(buffer) - begin > longest:
            end = _end_of_piece(buffer, begin, longest)
            yield buffer[begin:end], True
            begin = end
        kept = max(0, len(buffer) - _OVERLAP_BYTES) if begin is None else begin
        buffer, offset = buffer[kept:], offset + kept
        begin = None if begin is None else 0
    if begin is not None and buffer:
        yield buffer, False


def unwrap(text: str) -> str:
    """Join the lines of each paragraph; only blank lines part them.

    Where a script does without blanks between words, none comes in.
    """
    if not text.isascii():
        text = _BREAK_WITHOUT_BLANK.sub("", text)
    return "\n".join(block.replace("\n", " ") for block in re.split(r"\n{2,}", text.strip()))


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
