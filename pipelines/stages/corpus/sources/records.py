"""Documents in records with fields: JSON lines, CSV and TSV, Parquet and Arrow files, datasets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.config.errors import UserError
from pipelines.io.files import open_binary, whole_file
from pipelines.io.hugging_face import commit_of, name_of, rows_of
from pipelines.io.records import (
    LONGEST_RECORD_BYTES,
    BadRow,
    check_names,
    delimited_rows,
    dialect_of,
    is_nothing,
    json_record,
    values_of,
)
from pipelines.io.text import Tally, restored, restored_in
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.settings import (
    Columnar,
    DelimitedText,
    HuggingFaceDataset,
    JsonLines,
    RecordSource,
)
from pipelines.stages.corpus.sources.inputs import (
    InputFile,
    RawDocument,
    Resolved,
    Span,
    list_files,
)
from pipelines.stages.corpus.sources.text_files import cut_documents

_LINE: Final = re.compile(rb"\n+")
_COLUMNAR: Final = "Parquet or Arrow"
_ROWS_AT_ONCE: Final = 1024
_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_FILE_MAGIC: Final = b"ARROW1"

Records = Iterator[Mapping[str, Any]]


def resolve(
    settings: JsonLines | DelimitedText | Columnar | HuggingFaceDataset,
) -> Resolved:
    """The files that the source names, or one commit of its dataset as one file.

    A dataset is named by its files' bytes, or by its commit on the hub. Raises UserError where it
    is neither a local folder nor found on the hub.
    """
    if isinstance(settings, HuggingFaceDataset):
        revision = commit_of(settings.dataset, settings.revision)
        digest, num_bytes = name_of(settings.dataset, revision)
        file = InputFile(
            path=settings.dataset,
            label=label_of_dataset(settings),
            num_bytes=num_bytes,
            digest=digest,
            splittable=False,
        )
        where = settings.dataset if revision else str(Path(settings.dataset).absolute())
        update = {"revision": revision, "dataset": where}  # which a worker has to find, too
        return Resolved(settings.model_copy(update=update), [file])
    # Quoted line breaks forbid splitting a CSV file; Parquet files are divided at row groups.
    is_delimited = isinstance(settings, DelimitedText)
    files = list_files(settings.paths, label=settings.name, splittable=not is_delimited)
    if isinstance(settings, DelimitedText):
        # Of raw text no row is lost to a stray quote: what it hides stays, as one text.
        delimiter, quoted = settings.delimiter, settings.quoted
        files = [
            replace(file, dialect=dialect_of(file.path, delimiter, quoted, is_strict=False))
            for file in files
        ]
    return Resolved(settings, files)


def label_of_dataset(settings: HuggingFaceDataset) -> str:
    """What its documents are labelled with, where no field says it."""
    return settings.name or settings.dataset.rstrip("/").rsplit("/", 1)[-1]


def read(settings: RecordSource, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents of the records that begin in `span`; those without text are counted."""
    for record in _records(settings, span, tally):
        text = record.get(settings.text_field)
        if not isinstance(text, str | bytes):
            tally.dropped[f"records without the field {settings.text_field!r}"] += 1
            continue
        label = record.get(settings.label_field) if settings.label_field is not None else None
        named = "" if is_nothing(label) else str(restored_in(label, tally.repaired)).strip()
        yield RawDocument(
            text=mend(restored(text, tally.repaired), tally.repaired),
            label=named or span.file.label,
        )


def require_fields(settings: RecordSource, path: str, fields: list[str]) -> None:
    """Raise UserError unless the columns that the source names are among `fields`, each once."""
    check_names([f for f in fields if f in (settings.text_field, settings.label_field)], path)
    for setting in ("text_field", "label_field"):
        wanted = getattr(settings, setting)
        if wanted is not None and wanted not in fields:
            raise UserError(
                f"{path} has no column {wanted!r}, only "
                f"{', '.join(fields)[:200] or 'nothing'}; set `{setting}`"
            )


def count_rows(settings: Columnar, path: str) -> int | None:
    """Rows of a Parquet file; None for Arrow files, which do not say.

    Raises UserError where the file is not whole or lacks a column.
    """
    with open_binary(path) as stream, whole_file(path, _COLUMNAR):
        magic = stream.read(len(_PARQUET_MAGIC))
        stream.seek(0)
        if magic != _PARQUET_MAGIC:
            return None
        file = pq.ParquetFile(stream)
        require_fields(settings, path, file.schema_arrow.names)
        return int(file.metadata.num_rows)


def _records(settings: RecordSource, span: Span, tally: Tally) -> Records:
    if isinstance(settings, HuggingFaceDataset):
        revision = settings.revision
        return rows_of(settings.dataset, settings.configuration, settings.split, revision).rows
    if isinstance(settings, JsonLines):
        return _json_records(span, tally)
    if isinstance(settings, DelimitedText):
        return _delimited_records(settings, span, tally)
    assert isinstance(settings, Columnar)
    return _columnar_records(settings, span)


def _json_records(span: Span, tally: Tally) -> Records:
    with open_binary(span.file.path) as stream:
        for line, _ in cut_documents(stream, span, _LINE, LONGEST_RECORD_BYTES):
            if line.isspace():
                continue
            record = json_record(line, 0)  # line numbers are unknown within a span
            if isinstance(record, BadRow):
                tally.dropped[record.reason] += 1
            else:
                yield record


def _delimited_records(settings: DelimitedText, span: Span, tally: Tally) -> Records:
    dialect = span.file.dialect
    assert dialect is not None, "resolve says how the fields of a file are parted"
    with open_binary(span.file.path) as stream:
        rows = delimited_rows(stream, dialect)
        first = next(rows, None)
        header = [] if first is None or isinstance(first, BadRow) else first.cells
        require_fields(settings, span.file.path, header)
        for row in rows:
            if isinstance(row, BadRow):
                tally.dropped[row.reason] += 1
            else:
                yield dict(zip(header, row.cells, strict=True))


def _columnar_records(settings: Columnar, span: Span) -> Records:
    columns = [settings.text_field]
    if settings.label_field is not None:
        columns.append(settings.label_field)
    with open_binary(span.file.path) as stream, whole_file(span.file.path, _COLUMNAR):
        for batch in _batches(stream, settings, span, columns):
            for row in zip(*map(values_of, batch.columns), strict=True):
                yield dict(zip(batch.schema.names, row, strict=True))


def _batches(
    stream: IO[bytes], settings: Columnar, span: Span, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    magic = stream.read(len(_ARROW_FILE_MAGIC))
    stream.seek(0)
    if magic.startswith(_PARQUET_MAGIC):
        file = pq.ParquetFile(stream)
        require_fields(settings, span.file.path, file.schema_arrow.names)
        groups = [
            index
            for index in range(file.num_row_groups)
            if span.owns(_offset(file.metadata.row_group(index)))
        ]
        if groups:
            yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns)
    elif span.begin == 0:  # Arrow files are read as one, by the task that owns their beginning
        if magic == _ARROW_FILE_MAGIC:
            reader: Any = pa.ipc.open_file(stream)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            batches = reader = pa.ipc.open_stream(stream)
        require_fields(settings, span.file.path, reader.schema.names)
        for batch in batches:
            yield batch.select(columns)


def _offset(row_group: Any) -> int:
    """Where the row group's first column begins in the file."""
    column = row_group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)
