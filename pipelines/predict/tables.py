"""Tables of questions in files (lines of text, CSV, TSV, JSONL, Parquet), and answers as JSON."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from pipelines.errors import UserError
from pipelines.io.files import check_no_mark, format_suffix, open_text
from pipelines.io.tables import TableSettings, delimited_by, open_table, table_format

Table = dict[str, list[Any]]  # columns of one length


class FileTable(NamedTuple):
    """A file with all of its columns, and for each row its number there, from 0.

    Of JSONL and of texts that is the line's number, of other tables the row's, its header aside.
    """

    path: str
    numbers: list[int]
    columns: Table


def format_of(path: str, settings: TableSettings | None = None) -> str:
    """How a file is read, by its name: as a table of `pipelines.io`, or as `texts`, one a line.

    Raises UserError for a name that says neither.
    """
    kind = table_format(path, settings.delimiter if settings else None)
    if kind is None and format_suffix(path) not in (".txt", ""):
        raise UserError(
            f"{path} is not read by its name; questions are .txt with a text a line, .csv, .tsv, "
            ".jsonl or .parquet"
        )
    return kind or "texts"


def parsing_of(path: str, settings: TableSettings) -> str:
    """How a file is cut into rows and cells: its format, or its delimiter and quotes."""
    kind = format_of(path, settings)
    return delimited_by(path, settings) if kind == "delimited" else kind


def read_table(path: str, settings: TableSettings | None = None) -> FileTable:
    """All rows of a file at once: see `read_shards`."""
    return next(read_shards(path, None, settings))


def read_shards(
    path: str, rows_a_shard: int | None, settings: TableSettings | None = None
) -> Iterator[FileTable]:
    """The rows of a file with all of its columns, so many at a time; None: all at once.

    Lines without anything are no rows, and empty cells of CSV and TSV are None. The last shard may
    be empty: a file without rows has one, too. Raises UserError for a file that cannot be read.
    """
    kind = format_of(path, settings)
    names, rows = ["text"], _lines(path, settings)
    if kind != "texts":
        table = open_table(path, settings)
        names = table.columns
        rows = (
            (count if kind == "delimited" else row.number - 1, list(row.values.values()))
            for count, row in enumerate(table.rows)
        )
    while True:
        shard = list(islice(rows, rows_a_shard))
        columns = {name: [cells[place] for _, cells in shard] for place, name in enumerate(names)}
        if kind == "delimited":
            columns = {
                name: [cell if cell.strip() else None for cell in cells]
                for name, cells in columns.items()
            }
        yield FileTable(path, [number for number, _ in shard], columns)
        if rows_a_shard is None or len(shard) < rows_a_shard:
            return


def _lines(path: str, settings: TableSettings | None) -> Iterator[tuple[int, list[Any]]]:
    with open_text(path, (settings or TableSettings()).encoding) as text:
        for number, line in enumerate(text):
            check_no_mark(line, f"line {number + 1:,} of {path}")
            if line.strip():
                yield number, [line.strip()]


def beside(own: Table, asked: Table, answers: Table) -> Table:
    """The answers beside all columns of a file, none of which is lost.

    An answer whose name the file uses is called `predicted_…`; words that were asked are not
    repeated.
    """
    table = dict(own)
    for name, values in answers.items():
        if asked.get(name) == values:
            continue
        called = name
        while called in own:
            called = f"predicted_{called}"
        table[called] = values
    return table


def json_lines(table: Table) -> Iterator[str]:
    """A JSON object a row."""
    return map(_json, rows_of(table))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_listed)


def _listed(value: Any) -> Any:
    """Vectors as lists; bytes, dates and other kinds of Parquet files as texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def rows_of(table: Table) -> Iterator[dict[str, Any]]:
    """The rows of a table, by the names of its columns."""
    return (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
