"""Documents in records with fields: JSON lines, CSV and TSV."""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from pipelines.core.errors import UserError
from pipelines.stages.corpus.cleaning.repair import decode, mend
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.corpus.settings import DelimitedText, JsonLines, RecordSource
from pipelines.stages.corpus.sources.files import list_files, open_binary
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span
from pipelines.stages.corpus.sources.text_files import cut_documents

_LINE: Final = re.compile(rb"\n+")
_LONGEST_RECORD_BYTES: Final = 256 * 2**20


def list_inputs(settings: JsonLines | DelimitedText) -> list[InputFile]:
    """The files that the source names; quoted line breaks forbid splitting a CSV file."""
    return list_files(
        settings.paths, label=settings.name, splittable=isinstance(settings, JsonLines)
    )


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
    # Bytes that were no UTF-8 come as surrogates; they are mended like any others.
    plain = decode(text.encode("utf-8", "surrogateescape"), tally.repaired)
    return RawDocument(text=mend(plain, tally.repaired), label=label)


def _json_records(span: Span, tally: Tally) -> Iterator[Mapping[str, Any]]:
    with open_binary(span.file.path) as stream:
        for line, _ in cut_documents(stream, span, _LINE, _LONGEST_RECORD_BYTES):
            if line.isspace():
                continue
            try:
                record = json.loads(line.decode("utf-8-sig", "surrogateescape"))
            except json.JSONDecodeError:
                tally.dropped["lines that are not JSON"] += 1
                continue
            if isinstance(record, dict):
                yield _without_lone_surrogates(record)
            else:
                tally.dropped["lines that are not a JSON object"] += 1


def _without_lone_surrogates(record: dict[str, Any]) -> dict[str, Any]:
    """A `\\ud800` escape alone stands for no character: it becomes U+FFFD."""
    return {
        key: re.sub("[\ud800-\udc7f\udd00-\udfff]", "\ufffd", value)
        if isinstance(value, str) and not value.isascii()
        else value
        for key, value in record.items()
    }


def _delimited_records(
    settings: DelimitedText, span: Span, tally: Tally
) -> Iterator[Mapping[str, Any]]:
    suffixes = PurePosixPath(span.file.path).suffixes
    is_tsv = ".tsv" in suffixes
    quoted = settings.quoted if settings.quoted is not None else not is_tsv
    csv.field_size_limit(_LONGEST_RECORD_BYTES)
    with (
        open_binary(span.file.path) as stream,
        io.TextIOWrapper(
            stream, encoding="utf-8-sig", errors="surrogateescape", newline=""
        ) as lines,
    ):
        reader = csv.DictReader(
            lines,
            delimiter=settings.delimiter or ("\t" if is_tsv else ","),
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        )
        if settings.text_field not in (reader.fieldnames or ()):
            raise UserError(
                f"{span.file.path} must have the column {settings.text_field!r} in its first "
                f"line, found {', '.join(reader.fieldnames or ()) or 'nothing'}; set `text_field`"
            )
        yield from reader
