"""Files of several formats: each is read by the source that its name asks for."""

import io
from typing import Any, Final

from pipelines.config.errors import UserError
from pipelines.io.files import format_suffix, open_binary, read_head, whole_file
from pipelines.io.records import (
    TEXT_COLUMNS,
    BadRow,
    check_delimiter,
    delimited_rows,
    dialect_of,
    json_record,
)
from pipelines.io.text import check_is_text, check_suffix
from pipelines.stages.corpus.settings import (
    Columnar,
    DelimitedText,
    Files,
    FileSource,
    Html,
    JsonLines,
    Pdf,
    PlainText,
    RecordSource,
    Source,
)
from pipelines.stages.corpus.sources.inputs import expand_all

_HEAD_BYTES: Final = 2**20  # of a table: the names of its columns are there
_BY_SUFFIX: Final[dict[str, type[FileSource]]] = {
    ".csv": DelimitedText, ".tsv": DelimitedText,
    ".jsonl": JsonLines, ".ndjson": JsonLines,
    ".parquet": Columnar,
    ".pdf": Pdf,
    ".html": Html, ".htm": Html, ".xhtml": Html,
}  # fmt: skip


def divided(source: Source) -> list[Source]:
    """`source` alone or, for the kind `files`, one source for each format.

    Raises UserError where a file is of a format that nothing here reads, or a table has no column
    that holds the text.
    """
    if not isinstance(source, Files):
        return [source]
    found: dict[type[FileSource], list[str]] = {}
    for path in expand_all(source.paths):
        found.setdefault(_kind_of(path), []).append(path)
    # Of one kind, the paths stay as they were given.
    given = {kind: tuple(paths) for kind, paths in found.items()}
    if len(found) == 1:
        given = dict.fromkeys(found, source.paths)
    return [_of_kind(kind, source, given[kind], paths[0]) for kind, paths in found.items()]


def _of_kind(kind: type[FileSource], source: Files, paths: tuple[str, ...], first: str) -> Any:
    settings: dict[str, Any] = {"paths": paths, "name": source.name, "weight": source.weight}
    if kind is PlainText:
        settings["layout"] = source.layout
    elif issubclass(kind, RecordSource):
        settings["text_field"] = source.text_field or text_column_of(_columns(kind, first), first)
    return kind(**settings)


def _kind_of(path: str) -> type[FileSource]:
    check_suffix(path, "a corpus takes text, HTML, PDF, CSV, TSV, JSONL and Parquet files")
    return _BY_SUFFIX.get(format_suffix(path), PlainText)


def text_column_of(columns: list[str], path: str) -> str:
    """The column that is usually the text, or the only one; raises UserError where none is."""
    by_lowered = {name.strip().lower(): name for name in reversed(columns)}
    usual = next((by_lowered[name] for name in TEXT_COLUMNS if name in by_lowered), None)
    if usual is not None:
        return usual
    if len(columns) == 1:
        return columns[0]
    raise UserError(
        f"cannot tell which column of {path} holds the text, found "
        f"{', '.join(columns)[:200] or 'none'}; name it with --corpus-column, or text_field in a "
        "recipe"
    )


def _columns(kind: type[FileSource], path: str) -> list[str]:
    """The names of a table's columns, from the head of its file."""
    if kind is Columnar:
        import pyarrow.parquet as pq

        with open_binary(path) as stream, whole_file(path):
            return list(pq.ParquetFile(stream).schema_arrow.names)
    head, is_whole = read_head(path, _HEAD_BYTES)
    check_is_text(head, path)
    if kind is DelimitedText:
        dialect = dialect_of(path, is_strict=False)
        first = next(delimited_rows(io.BytesIO(head), dialect), None)
        if first is None or isinstance(first, BadRow):
            return []
        check_delimiter(first, path, dialect, advice=", or set kind: csv and delimiter in a recipe")
        return first.cells
    lines = [line for line in head.split(b"\n") if line.strip()]
    records = [json_record(line, 0) for line in (lines if is_whole else lines[:-1] or lines)]
    return list(
        dict.fromkeys(key for each in records if not isinstance(each, BadRow) for key in each)
    )
