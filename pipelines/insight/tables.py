"""Tables of questions and answers in files: lines of text, CSV, TSV, JSONL and Parquet."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pipelines.core.errors import UserError
from pipelines.core.reading.files import format_suffix, is_local, open_binary, require_regular
from pipelines.core.reading.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.core.reading.text import decode, refuse_binary

Table = dict[str, list[Any]]

_OUT: Final = (".csv", ".tsv", ".jsonl", ".parquet")


def read_table(path: str, renamed: Mapping[str, str], wanted: Sequence[str]) -> Table:
    """The columns `wanted` of a file, as many of them as there are.

    `renamed` says under which name the file has a column. What is no .csv, .tsv, .jsonl or .parquet
    table holds a `text` a line. Raises UserError for one that cannot be read.
    """
    if is_local(path):
        require_regular(path.removeprefix("file://"))
    suffix = format_suffix(path)
    with open_binary(path) as stream:
        if suffix == ".parquet":
            import pyarrow.parquet as pq

            found = pq.read_table(stream).to_pydict()
        elif suffix in (".jsonl", ".ndjson"):
            records = []
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                record = json_record(line, number)
                if isinstance(record, BadRow):
                    raise record.refusal(path)
                records.append(record)
            names = list(records[0]) if records else []
            found = {name: [record.get(name) for record in records] for name in names}
        elif suffix in (".csv", ".tsv"):
            rows = []
            for row in delimited_rows(stream, dialect_of(path)):
                if isinstance(row, BadRow):
                    raise row.refusal(path)
                rows.append(row.cells)
            header, body = (rows[0], rows[1:]) if rows else ([], [])
            found = {name: [row[index] for row in body] for index, name in enumerate(header)}
        else:
            data = stream.read()
            refuse_binary(data, path)
            found = {"text": lines_of(decode(data, Counter()))}
    table: Table = {}
    for name in wanted:
        theirs = renamed.get(name, name)
        if theirs in found:
            table[name] = found[theirs]
        elif name in renamed:
            raise UserError(
                f"{path} must have a column {theirs!r}, found {', '.join(found)[:200]}; name "
                "another one"
            )
    return table


def lines_of(text: str) -> list[str]:
    """The lines that hold something."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def refuse_other_output(path: Path) -> None:
    """Raise UserError where answers could not be written; asked before anything is answered."""
    if path.suffix not in _OUT:
        raise UserError(f"answers are written to {', '.join(_OUT)} files, found {path}")
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
