"""Tables of questions and answers in files: lines of text, CSV, TSV, JSONL and Parquet."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.files import format_suffix, is_local, open_binary, require_regular
from pipelines.core.reading.parquet import whole_file
from pipelines.core.reading.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.core.reading.text import decode, refuse_binary, restored_in
from pipelines.stages.labelled.cells import written_in

Table = dict[str, list[Any]]

_LISTS: Final = "choices"  # the column whose cells hold several texts
_OUT: Final = (".csv", ".tsv", ".jsonl", ".parquet")


class NumberedTable(NamedTuple):
    """The columns of a file, and for each row its number there, from 0.

    Of JSONL and of texts that is the line's number, of other tables the row's, its header aside.
    """

    numbers: list[int]
    columns: Table


def read_table(path: str, renamed: Mapping[str, str], wanted: Sequence[str]) -> Table:
    """The columns `wanted` of a file, as many of them as there are.

    `renamed` says under which name the file has a column. What is no .csv, .tsv, .jsonl or .parquet
    table holds a `text` a line. Raises UserError for one that cannot be read.
    """
    return read_numbered_table(path, renamed, wanted).columns


def read_numbered_table(
    path: str, renamed: Mapping[str, str], wanted: Sequence[str]
) -> NumberedTable:
    """Likewise, with the number of each row in its file: lines without anything are no rows."""
    if is_local(path):
        require_regular(path.removeprefix("file://"))
    form = format_of(path)
    with open_binary(path) as stream:
        if form == "parquet":
            numbers, found = _of_parquet(path, stream)
        elif form == "jsonl":
            numbers, found = _of_json(path, stream)
        elif form in ("csv", "tsv"):
            numbers, found = _of_delimited(path, stream)
        else:
            data = stream.read()
            refuse_binary(data, path)
            lines = numbered_lines(decode(data, Counter()))
            numbers, found = list(lines), {"text": list(lines.values())}
    table: Table = {}
    for name in wanted:
        theirs = renamed.get(name, name)
        if theirs in found:
            table[name] = found[theirs]
            if name == _LISTS and form in ("csv", "tsv"):
                table[name] = [_list_in(cell, path) for cell in found[theirs]]
        elif name in renamed:
            raise UserError(
                f"{path} must have a column {theirs!r}, found {', '.join(found)[:200]}; name "
                "another one"
            )
    return NumberedTable(numbers, table)


def format_of(path: str) -> str:
    """How a file is read, by its name: the bytes alone do not say it."""
    suffix = format_suffix(path)
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    return suffix[1:] if suffix in (".csv", ".tsv", ".parquet") else "texts"


def numbered_lines(text: str) -> dict[int, str]:
    """The lines that hold something, by their number from 0; line feeds alone part them."""
    return {number: line.strip() for number, line in enumerate(text.split("\n")) if line.strip()}


def _of_parquet(path: str, stream: IO[bytes]) -> NumberedTable:
    import pyarrow.parquet as pq

    with whole_file(path):
        table = pq.read_table(stream)
    return NumberedTable(list(range(table.num_rows)), table.to_pydict())


def _of_json(path: str, stream: IO[bytes]) -> NumberedTable:
    """Every key of any line is a column, which is empty where a line has no such key."""
    records: dict[int, Any] = {}
    names: dict[str, None] = {}
    for number, line in enumerate(stream):
        if not line.strip():
            continue
        record = json_record(line, number + 1)
        if isinstance(record, BadRow):
            raise record.refusal(path)
        records[number] = restored_in(record, Counter())
        names.update(dict.fromkeys(record))
    columns = {name: [record.get(name) for record in records.values()] for name in names}
    return NumberedTable(list(records), columns)


def _of_delimited(path: str, stream: IO[bytes]) -> NumberedTable:
    """Empty cells are nothing: a table of text has no other way to say so."""
    rows: list[list[str]] = []
    for row in delimited_rows(stream, dialect_of(path)):
        if isinstance(row, BadRow):
            raise row.refusal(path)
        rows.append(restored_in(row.cells, Counter()))
    header, body = (rows[0], rows[1:]) if rows else ([], [])
    columns: Table = {
        name: [row[index] if row[index].strip() else None for row in body]
        for index, name in enumerate(header)
    }
    return NumberedTable(list(range(len(body))), columns)


def _list_in(cell: str | None, path: str) -> list[Any] | None:
    """The list that a cell writes out, as `write_table` does; UserError where it writes none."""
    if cell is None:
        return None
    written = written_in(cell)
    if not isinstance(written, list):
        raise UserError(
            f"a cell of {path} with choices must write out a list, such as "
            f'["one", "another"], found {cell[:60]!r}; write one, or give .jsonl or .parquet'
        )
    return written


def refuse_other_output(path: Path) -> None:
    """Raise UserError where answers could not be written; asked before anything is answered."""
    if path.suffix not in _OUT:
        raise UserError(f"answers are written to {', '.join(_OUT)} files, found {path}")
    if path.is_dir():
        raise UserError(f"answers are written to a file, found the folder {path}; choose a name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{path} must lie in a folder that exists; make it, or choose another")


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
                delimiter = "\t" if path.suffix == ".tsv" else ","
                writer = csv.writer(file, delimiter=delimiter)
                writer.writerow(table)
                writer.writerows(zip(*map(_cells, table.values()), strict=True))
    partial.replace(path)


def json_lines(table: Table) -> list[str]:
    """A JSON object a row."""
    names = list(table)
    return [
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        for row in zip(*table.values(), strict=True)
    ]


def _cells(values: Sequence[Any]) -> list[Any]:
    """Lists as JSON: a cell holds one text."""
    return [
        json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value
        for value in values
    ]
