"""Labelled texts of CSV, TSV, JSONL and Parquet files, by the rules of `pipelines.core.reading`.

A row without a text is left out and counted. A row with a text must have a label: an empty one,
null, NaN, or the words nan and <NA> that stand for it in tables say that somebody has not labelled
the row, and are refused.
"""

import hashlib
import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import IO, Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.files import format_suffix, is_local, open_binary, require_regular
from pipelines.core.reading.records import (
    BadRow,
    Row,
    delimited_rows,
    dialect_of,
    json_record,
)
from pipelines.core.reading.text import refuse_binary, restored
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.settings import LabelledFile

_TEXT_NAMES: Final = ("text", "sentence", "message", "content", "review", "document", "body")
_LABEL_NAMES: Final = ("label", "class", "category", "target", "tag")
_FORMATS: Final = {
    ".csv": "delimited",
    ".tsv": "delimited",
    ".txt": "delimited",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_NO_LABEL: Final = ("", "nan", "<na>")
_HEAD_BYTES: Final = 65536
_BLOCK_BYTES: Final = 2**20


class LabelledText(NamedTuple):
    """A text and what it is labelled with."""

    text: str
    label: str


def name_of_file(path: str) -> dict[str, str]:
    """What decides the texts of a file: its bytes, decompressed, and how they are parsed.

    Raises UserError where it is not there, not readable or of an unknown format.
    """
    kind = name_of_format(path)
    parsing = kind
    if kind == "delimited":
        dialect = dialect_of(path)
        parsing = f"delimiter {dialect.delimiter!r}, quotes {'enclose' if dialect.quoted else ''}"
    digest = hashlib.sha256()
    with opened(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return {"file": digest.hexdigest(), "format": parsing}


def read_labelled_file(
    settings: LabelledFile, tally: Tally, *, head_bytes: int | None = None
) -> list[LabelledText]:
    """The labelled texts in their order; what is mended or left out is counted.

    Columns are those that the settings name, or found by their usual names. Two columns without a
    header are understood: the column with fewer different values is the label. With `head_bytes`
    only that much of the file is looked at, and a row that breaks off there is no fault. Raises
    UserError, naming the line, for a row that cannot be read or has no label.
    """
    path = settings.path
    rows = list(_rows(path, head_bytes))
    if head_bytes is not None:
        rows = rows[:-1]
    for row in rows:
        if isinstance(row, BadRow):
            raise row.refusal(path)
    whole = [row for row in rows if isinstance(row, Row)]
    if not whole:
        raise UserError(f"{path} must hold labelled texts, found no row in it")
    text_index, label_index, first_row = _columns(settings, [row.cells for row in whole])
    found: list[LabelledText] = []
    for line, cells in whole[first_row:]:
        text = restored(cells[text_index], tally.repaired).strip()
        label = restored(cells[label_index], tally.repaired).strip()
        if not text:
            tally.dropped["rows without a text"] += 1
        elif label.lower() in _NO_LABEL:
            raise UserError(
                f"every text of {path} must have a label, found {label or 'none'!r} in line "
                f"{line:,}; label that row or remove it"
            )
        else:
            found.append(LabelledText(text, label))
    return found


def name_of_format(path: str) -> str:
    """`delimited`, `jsonl` or `parquet`, by the suffix; raises UserError for any other."""
    if not path:
        raise UserError(
            "labelled.source.path must name a CSV, TSV, JSONL or Parquet file, found nothing"
        )
    kind = _FORMATS.get(format_suffix(path))
    if kind is None:
        raise UserError(
            f"the labelled file must end in .csv, .tsv, .jsonl or .parquet (or one of these "
            f"compressed), found {path}"
        )
    return kind


def opened(path: str) -> AbstractContextManager[IO[bytes]]:
    """The bytes of the file, decompressed; raises UserError unless it is one and readable."""
    if is_local(path):
        require_regular(path.removeprefix("file://"))
    return open_binary(path)


def _rows(path: str, head_bytes: int | None) -> Iterator[Row | BadRow]:
    """Rows of the file, the names of the columns first where the format has any."""
    kind = name_of_format(path)
    with opened(path) as whole:
        if kind == "parquet":
            yield from _rows_of_parquet(path, whole, head_bytes is not None)
            return
        stream = whole if head_bytes is None else io.BytesIO(whole.read(head_bytes))
        head = stream.read(_HEAD_BYTES)
        refuse_binary(head, path)
        stream.seek(0)
        if kind == "jsonl":
            yield from _rows_of_json(stream)
        else:
            yield from delimited_rows(stream, dialect_of(path))


def _rows_of_json(stream: IO[bytes]) -> Iterator[Row | BadRow]:
    header: list[str] = []
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        record = json_record(line, number)
        if isinstance(record, BadRow):
            yield record
            continue
        if not header:
            header = list(record)
            yield Row(number, header)
        yield Row(number, [_cell(record.get(key)) for key in header])


def _rows_of_parquet(path: str, stream: IO[bytes], only_head: bool) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
        yield Row(0, file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(1024):
            for values in batch.to_pylist():
                number += 1
                yield Row(number, [_cell(value) for value in values.values()])
            if only_head:
                return
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} must be a whole Parquet file, but it cannot be read ({error}); fetch it again"
        ) from error


def _cell(value: Any) -> str:
    """A value as the text of a CSV file; nothing and NaN are empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return str(value)


def _columns(settings: LabelledFile, rows: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """Index of the text, index of the label, and the first row that holds data."""
    header = [cell.strip() for cell in rows[0]]
    if settings.text_column or settings.label_column:
        text = _named(settings, "text_column", header, _TEXT_NAMES)
        return text, _named(settings, "label_column", header, _LABEL_NAMES), 1
    lowered = [cell.lower() for cell in header]
    text_found = [lowered.index(name) for name in _TEXT_NAMES if name in lowered]
    label_found = [lowered.index(name) for name in _LABEL_NAMES if name in lowered]
    if text_found and label_found:
        return text_found[0], label_found[0], 1
    if len(header) != 2:
        raise UserError(
            f"the columns of {settings.path} must be told: found {', '.join(header)[:200]}; name "
            "them with text_column and label_column"
        )
    values = [Counter(row[column] for row in rows) for column in (0, 1)]
    label = 0 if len(values[0]) <= len(values[1]) else 1
    # A first row whose label occurs nowhere else is a header.
    is_header = len(rows) > 1 and values[label][rows[0][label]] == 1
    return 1 - label, label, int(is_header)


def _named(
    settings: LabelledFile, setting: str, header: Sequence[str], usual: Sequence[str]
) -> int:
    """Index of the column that `setting` names, or of one with a usual name."""
    wanted = getattr(settings, setting)
    candidates = [wanted] if wanted else list(usual)
    for name in candidates:
        if name in header:
            return header.index(name)
    raise UserError(
        f"{settings.path} must have a column {' or '.join(repr(name) for name in candidates)}, "
        f"found {', '.join(header)[:200]}; set {setting} to the one you mean"
    )
