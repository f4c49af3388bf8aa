"""Tables in files, read and written: lines of text, CSV, TSV, JSONL and Parquet."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pipelines.config.errors import UserError
from pipelines.io.files import format_suffix
from pipelines.io.records import BadRow, TableFormat, opened, table_rows
from pipelines.io.text import check_is_text, decode, restored_in

Table = dict[str, list[Any]]  # columns of one length

_READ: Final[dict[str, TableFormat]] = {
    "csv": "delimited", "tsv": "delimited", "jsonl": "jsonl", "parquet": "parquet"
}  # fmt: skip
_WRITTEN: Final = (".csv", ".tsv", ".jsonl", ".parquet")


class FileTable(NamedTuple):
    """A file with all of its columns, and for each row its number there, from 0.

    Of JSONL and of texts that is the line's number, of other tables the row's, its header aside.
    """

    path: str
    numbers: list[int]
    columns: Table


def format_of(path: str) -> str:
    """How a file is read, by its name: the bytes alone do not say it."""
    suffix = format_suffix(path)
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    return suffix[1:] if suffix in (".csv", ".tsv", ".parquet") else "texts"


def read_table(path: str) -> FileTable:
    """All columns of a file; what is no .csv, .tsv, .jsonl or .parquet table has a `text` a line.

    Lines without anything are no rows, and empty cells of CSV and TSV are None. Raises UserError
    for a file that cannot be read.
    """
    form = format_of(path)
    if form == "texts":
        with opened(path) as stream:
            lines = text_lines(stream.read(), path)
        return FileTable(path, list(lines), {"text": list(lines.values())})
    rows = []
    for row in table_rows(path, _READ[form]):
        if isinstance(row, BadRow):
            raise row.refusal(path)
        rows.append(row)
    header, body = (rows[0].cells, rows[1:]) if rows else ([], [])
    is_delimited = _READ[form] == "delimited"
    numbers = range(len(body)) if is_delimited else [row.line - 1 for row in body]
    cells = [row.cells if form == "parquet" else restored_in(row.cells, Counter()) for row in body]
    if is_delimited:
        header = restored_in(header, Counter())
        cells = [[cell if cell.strip() else None for cell in row] for row in cells]
    columns = {name: [row[place] for row in cells] for place, name in enumerate(header)}
    return FileTable(path, list(numbers), columns)


def text_lines(data: bytes, name: str) -> dict[int, str]:
    """The lines that hold something, by their number from 0; line feeds alone part them."""
    check_is_text(data, name)
    lines = enumerate(decode(data, Counter()).split("\n"))
    return {number: line.strip() for number, line in lines if line.strip()}


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


def check_output(path: Path, own: Table) -> None:
    """Raise UserError where answers beside the columns `own` could not be written to `path`.

    It is asked before anything is answered.
    """
    if path.suffix not in _WRITTEN:
        raise UserError(f"answers are written to {', '.join(_WRITTEN)} files, found {path}")
    if path.is_dir():
        raise UserError(f"answers are written to a file, found the folder {path}; choose a name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path} must lie in a folder that exists; make it, or choose another")
    if path.suffix == ".parquet":
        import pyarrow as pa

        try:
            pa.table(own)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"a column of {path} must hold values of one kind, but {error}; write .jsonl"
            ) from None


def write_table(path: Path, table: Table) -> None:
    """Write the columns of a table, by the file's suffix; what was there is replaced at the end."""
    partial = path.with_name(f".{path.name}.partial")
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(table), partial)
    else:
        with partial.open("w", encoding="utf-8", newline="") as file:
            if path.suffix == ".jsonl":
                file.writelines(f"{line}\n" for line in json_lines(table))
            else:
                writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writerow(table)
                writer.writerows(zip(*map(_cells, table.values()), strict=True))
    partial.replace(path)


def json_lines(table: Table) -> list[str]:
    """A JSON object a row."""
    # Parquet files have dates and numbers of kinds that JSON does not know.
    return [json.dumps(row, ensure_ascii=False, default=str) for row in rows_of(table)]


def rows_of(table: Table) -> list[dict[str, Any]]:
    """The rows of a table, by the names of its columns."""
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _cells(values: Sequence[Any]) -> list[Any]:
    """Lists and objects as JSON: a cell holds one text."""
    return [
        json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, list | dict)
        else value
        for value in values
    ]
