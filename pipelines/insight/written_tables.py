"""Tables of answers in files: CSV, TSV, JSONL and Parquet."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pipelines.core.errors import UserError
from pipelines.insight.tables import Table

_OUT: Final = (".csv", ".tsv", ".jsonl", ".parquet")


def beside(own: Table, asked: Table, answers: Table) -> Table:
    """The answers beside all columns of a file, none of which is lost.

    An answer whose name the file uses is called `predicted_…`; words that were asked are not told
    again.
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


def refuse_other_output(path: Path, own: Table) -> None:
    """Raise UserError where answers beside the columns `own` could not be written to `path`.

    It is asked before anything is answered.
    """
    if path.suffix not in _OUT:
        raise UserError(f"answers are written to {', '.join(_OUT)} files, found {path}")
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
                delimiter = "\t" if path.suffix == ".tsv" else ","
                writer = csv.writer(file, delimiter=delimiter)
                writer.writerow(table)
                writer.writerows(zip(*map(_cells, table.values()), strict=True))
    partial.replace(path)


def json_lines(table: Table) -> list[str]:
    """A JSON object a row."""
    names = list(table)
    return [
        # Parquet files have dates and numbers of kinds that JSON does not know.
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=str)
        for row in zip(*table.values(), strict=True)
    ]


def _cells(values: Sequence[Any]) -> list[Any]:
    """Lists and objects as JSON: a cell holds one text."""
    return [
        json.dumps(value, ensure_ascii=False, default=str)
        if isinstance(value, list | dict)
        else value
        for value in values
    ]
