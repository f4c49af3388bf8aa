"""Documents in the columns of Parquet and Arrow files."""

from collections.abc import Iterator
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.core.reading.files import open_binary
from pipelines.core.reading.parquet import whole_file
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import Columnar
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span, list_files
from pipelines.stages.corpus.sources.records import document_of, require_fields

_KINDS: Final = "Parquet or Arrow"
_ROWS_AT_ONCE: Final = 1024
_PARQUET_MAGIC: Final = b"PAR1"
_ARROW_FILE_MAGIC: Final = b"ARROW1"


def list_inputs(settings: Columnar) -> list[InputFile]:
    """The files that the source names; Parquet files are divided at their row groups."""
    return list_files(settings.paths, label=settings.name, splittable=True)


def read(settings: Columnar, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents of the rows that belong to `span`."""
    columns = [settings.text_field]
    if settings.label_field is not None:
        columns.append(settings.label_field)
    with open_binary(span.file.path) as stream, whole_file(span.file.path, _KINDS):
        for batch in _batches(stream, settings, span, columns):
            for record in batch.to_pylist():
                document = document_of(settings, record, span.file.label, tally)
                if document is not None:
                    yield document


def count_rows(settings: Columnar, path: str) -> int | None:
    """Rows of a Parquet file; None for Arrow files, which do not say.

    Raises UserError where the file is not whole or lacks a column.
    """
    with open_binary(path) as stream, whole_file(path, _KINDS):
        magic = stream.read(len(_PARQUET_MAGIC))
        stream.seek(0)
        if magic != _PARQUET_MAGIC:
            return None
        file = pq.ParquetFile(stream)
        require_fields(settings, path, file.schema_arrow.names)
        return int(file.metadata.num_rows)


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
            if _owns(span, _offset(file.metadata.row_group(index)))
        ]
        if groups:
            yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=columns)
    elif span.begin == 0:  # Arrow files are read as one, by the task that owns their beginning
        if magic == _ARROW_FILE_MAGIC:
            reader: Any = pa.ipc.open_file(stream)
            require_fields(settings, span.file.path, reader.schema.names)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            reader = pa.ipc.open_stream(stream)
            require_fields(settings, span.file.path, reader.schema.names)
            batches = iter(reader)
        for batch in batches:
            yield batch.select(columns)


def _owns(span: Span, offset: int) -> bool:
    return span.begin <= offset and (span.end is None or offset < span.end)


def _offset(row_group: Any) -> int:
    """Where the row group's first column begins in the file."""
    column = row_group.column(0)
    return int(column.dictionary_page_offset or column.data_page_offset)
