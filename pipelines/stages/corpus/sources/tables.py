"""Documents of tables and data sets: a row's text, and the value that labels it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipelines.io.files import read_head
from pipelines.io.hugging_face import commit_of, name_of, rows_of
from pipelines.io.tables import (
    LONGEST_RECORD_BYTES,
    cell_text,
    check_column,
    column_values,
    json_object,
    open_columnar,
    open_table,
)
from pipelines.io.text import SAMPLE_BYTES, Tally, check_is_text, decoded, naming_other_bytes
from pipelines.stages.corpus.cleaning import mend
from pipelines.stages.corpus.settings import HuggingFaceDataset, RowSource, TextFiles
from pipelines.stages.corpus.sources.inputs import InputFile, RawDocument, Span, format_of
from pipelines.stages.corpus.sources.text_files import cut_documents, open_as_utf8

_LINE: Final = re.compile(rb"\n+")
_BAD_ROWS: Final = "rows that are not like the others, or no JSON"

Values = Mapping[str, Any]


def resolve_dataset(settings: HuggingFaceDataset) -> tuple[HuggingFaceDataset, list[InputFile]]:
    """A data set as one file, named by its files' bytes or by its commit on the hub.

    Raises UserError where it is neither a local folder nor found on the hub.
    """
    revision = commit_of(settings.dataset, settings.revision)
    digest, num_bytes = name_of(settings.dataset, revision)
    file = InputFile(
        path=settings.dataset,
        label=label_of_dataset(settings),
        num_bytes=num_bytes,
        digest=digest,
        format="dataset",
        splittable=False,
    )
    where = settings.dataset if revision else str(Path(settings.dataset).absolute())
    # A worker has to find it, too.
    return settings.model_copy(update={"revision": revision, "dataset": where}), [file]


def label_of_dataset(settings: HuggingFaceDataset) -> str:
    """What its documents are labelled with, where no field says it."""
    return settings.name or settings.dataset.rstrip("/").rsplit("/", 1)[-1]


def check_columns(settings: TextFiles, path: str) -> None:
    """Raise UserError where a table cannot be read or lacks a column."""
    is_json = format_of(path, settings) == "jsonl"
    columns = _keys_in_head(path) if is_json else open_table(path, settings).columns
    _check_columns(settings, columns, path)


def _keys_in_head(path: str) -> list[str]:
    """The keys of the objects in the first lines."""
    head, is_whole = read_head(path, SAMPLE_BYTES)
    check_is_text(head, path)
    lines = head.split(b"\n")
    keys: dict[str, None] = {}
    for line in lines if is_whole else lines[:-1]:
        if line.strip():
            keys.update(dict.fromkeys(json_object(decoded(line, path))))
    return list(keys)


def _check_columns(settings: RowSource, columns: Sequence[str], path: str) -> None:
    check_column(settings.text_field, columns, path, "text_field of the source (--corpus-column)")
    if settings.label_field is not None:
        check_column(settings.label_field, columns, path, "label_field of the source")


def read_dataset(settings: HuggingFaceDataset, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents of the rows of a data set; those without text are counted."""
    name, revision = settings.dataset, settings.revision
    rows = rows_of(name, settings.configuration, settings.split, revision).rows
    return _documents(settings, rows, span, tally)


def read(settings: TextFiles, span: Span, tally: Tally) -> Iterator[RawDocument]:
    """Documents of the rows that begin in `span`; those without text are counted."""
    if span.file.format in ("csv", "tsv"):
        rows = _delimited_rows(settings, span.file.path, tally)
    elif span.file.format == "jsonl":
        rows = _json_rows(settings, span, tally)
    else:
        rows = _columnar_rows(settings, span)
    return _documents(settings, rows, span, tally)


def _documents(
    settings: RowSource, rows: Iterable[Values], span: Span, tally: Tally
) -> Iterator[RawDocument]:
    for values in rows:
        text = values.get(settings.text_field)
        if not isinstance(text, str | bytes):
            tally.dropped[f"rows without text in {settings.text_field!r}"] += 1
            continue
        if isinstance(text, bytes):
            text = decoded(text, span.file.path)
        label = cell_text(values.get(settings.label_field)) if settings.label_field else ""
        yield RawDocument(text=mend(text, tally.repaired), label=label or span.file.label)


def _delimited_rows(settings: TextFiles, path: str, tally: Tally) -> Iterator[Values]:
    def skip(line: int, fault: str) -> None:
        tally.dropped[_BAD_ROWS] += 1

    table = open_table(path, settings, skip)
    _check_columns(settings, table.columns, path)
    return (row.values for row in table.rows)


def _json_rows(settings: TextFiles, span: Span, tally: Tally) -> Iterator[Values]:
    path, encoding = span.file.path, settings.encoding
    with naming_other_bytes(path, encoding), open_as_utf8(path, encoding) as stream:
        for line, _ in cut_documents(stream, span, _LINE, LONGEST_RECORD_BYTES):
            if line.isspace():
                continue
            text = line.decode().removeprefix("\ufeff")
            try:
                yield json_object(text)
            except ValueError:
                tally.dropped[_BAD_ROWS] += 1


def _columnar_rows(settings: TextFiles, span: Span) -> Iterator[Values]:
    path = span.file.path
    names = [name for name in (settings.text_field, settings.label_field) if name is not None]
    with open_columnar(path, names, span.owns) as (schema, batches):
        _check_columns(settings, schema.names, path)
        for batch in batches:
            columns = [column_values(batch.column(name), name, path) for name in names]
            for values in zip(*columns, strict=True):
                yield dict(zip(names, values, strict=True))
