"""Documents in records with fields: JSON lines, CSV and TSV."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pipelines.core.errors import UserError
from pipelines.core.reading.files import open_binary
from pipelines.core.reading.records import (
    LONGEST_RECORD_BYTES,
    BadRow,
    delimited_rows,
    dialect_of,
    json_record,
)
from pipelines.core.reading.text import restored
from pipelines.stages.corpus.cleaning.repair import mend
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import DelimitedText, JsonLines, RecordSource
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span, list_files
from pipelines.stages.corpus.sources.text_files import cut_documents

_LINE: Final = re.compile(rb"\n+")


def list_inputs(settings: JsonLines | DelimitedText) -> list[InputFile]:
    """The files that the source names; quoted line breaks forbid splitting a CSV file."""
    if isinstance(settings, JsonLines):
        return list_files(settings.paths, label=settings.name, splittable=True)
    files = list_files(settings.paths, label=settings.name, splittable=False)
    # Of raw text no row is lost to a stray quote: what it hides stays, as one text.
    return [
        replace(
            file,
            dialect=dialect_of(file.path, settings.delimiter, settings.quoted, is_strict=False),
        )
        for file in files
    ]


def read(settings: JsonLines | DelimitedText, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents of the records that begin in `span`."""
    if isinstance(settings, JsonLines):
        records = _json_records(span, tally)
    else:
        records = _delimited_records(settings, span, tally)
    for record in records:
        document = document_of(settings, record, span.file.label, tally)
        if document is not None:
            yield document


def document_of(
    settings: RecordSource, record: Mapping[str, Any], label: str, tally: Tally
) -> RawDocument | None:
    """The document in a record; None, and counted, where it has no text."""
    text = record.get(settings.text_field)
    if not isinstance(text, str):
        tally.dropped[f"records without the field {settings.text_field!r}"] += 1
        return None
    if settings.label_field is not None:
        found = record.get(settings.label_field)
        label = label if found is None else str(found)
    return RawDocument(text=mend(restored(text, tally.repaired), tally.repaired), label=label)


def require_fields(settings: RecordSource, path: str, fields: list[str]) -> None:
    """Raise UserError unless the columns that the source names are among `fields`."""
    for setting in ("text_field", "label_field"):
        wanted = getattr(settings, setting)
        if wanted is not None and wanted not in fields:
            raise UserError(
                f"{path} must have the column {wanted!r}, found "
                f"{', '.join(fields)[:200] or 'nothing'}; set `{setting}`"
            )


def _json_records(span: Span, tally: Tally) -> Iterator[Mapping[str, Any]]:
    with open_binary(span.file.path) as stream:
        for line, _ in cut_documents(stream, span, _LINE, LONGEST_RECORD_BYTES):
            if line.isspace():
                continue
            record = json_record(line, 0)  # of a span's lines nobody knows the numbers
            if isinstance(record, BadRow):
                tally.dropped[record.reason] += 1
            else:
                yield record


def _delimited_records(
    settings: DelimitedText, span: Span, tally: Tally
) -> Iterator[Mapping[str, Any]]:
    dialect = span.file.dialect
    assert dialect is not None, "list_inputs says how the fields of a file are parted"
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
