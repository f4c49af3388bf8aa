"""Tables in files: CSV and TSV, JSON lines and Parquet, row by row.

One set of rules for labelled data, corpora and batches. Values are as written: `NA`, `null` and
`01` are texts. Quotes enclose fields, but not between the tabs of a file that is not called .csv:
there they are ordinary characters.
"""

import codecs
import csv
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pydantic import Field, field_validator

from pipelines.errors import UserError
from pipelines.io.files import (
    SAMPLE_BYTES,
    check_is_no_pointer,
    check_no_mark,
    format_suffix,
    open_binary,
    open_text,
)
from pipelines.io.row_checks import SwallowedRows, check_quotes, names_columns
from pipelines.settings import Settings

if TYPE_CHECKING:  # what checks a recipe reads text, mostly
    import pyarrow as pa

LONGEST_RECORD_BYTES: Final = 256 * 2**20
_FORMATS: Final = {
    ".csv": "delimited", ".tsv": "delimited", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".parquet": "parquet",
}  # fmt: skip
_ROWS_AT_ONCE: Final = 1024
_BUFFER_BYTES: Final = 2**20  # without a buffer a row group is read whole
_ENCLOSED: Final = re.compile(r'"(?:[^"]|"")+"')
_DELIMITERS: Final = ";\t|,"
_LONE_SURROGATES: Final = re.compile("[\ud800-\udfff]")

TableFormat = Literal["delimited", "jsonl", "parquet"]


class TableSettings(Settings):
    """How the text of a table is read; Parquet files say it themselves."""

    delimiter: str | None = Field(
        default=None,
        min_length=1,
        max_length=1,
        description="What separates columns; by default a comma in .csv and a tab in .tsv files.",
    )
    no_header: bool = Field(
        default=False,
        description="The first row is data. Columns are called by their number, from 1.",
    )
    encoding: str = Field(
        default="utf-8",
        description="Encoding of the text, by Python's name, such as cp1252, gbk or shift_jis. A "
        "file with a byte order mark is read by it.",
    )

    @field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        try:
            "".encode(encoding)  # Python has codecs of bytes, and one that refuses all, beside
            return codecs.lookup(encoding).name
        except (LookupError, UnicodeError) as error:
            raise ValueError(f"no encoding is called {encoding!r}; name one of Python's") from error


class Row(NamedTuple):
    """The values of a row by its columns. Numbers count lines, or rows of Parquet, from 1."""

    number: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file, to be read once; the file is closed after the last one."""

    unit: Literal["line", "row"]  # what a row's number counts
    columns: list[str]
    rows: Iterator[Row]
    schema: "pa.Schema | None" = None  # of Parquet


def table_format(path: str, delimiter: str | None = None) -> TableFormat | None:
    """The format of a table by the file's name; None where it is none that is read here.

    With a `delimiter` any other name is delimited text. Raises UserError where a format has none.
    """
    named: Any = _FORMATS.get(format_suffix(path))
    if delimiter and named not in (None, "delimited"):
        raise UserError(f"{path} is {named} by its name, which has no delimiter; leave it out")
    return named or ("delimited" if delimiter else None)


def delimiter_of(path: str, settings: TableSettings) -> str:
    """What separates the columns of a file of delimited text."""
    return settings.delimiter or ("\t" if format_suffix(path) == ".tsv" else ",")


def open_table(path: str, settings: TableSettings | None = None) -> Table:
    """The columns and rows of a file.

    Raises UserError, naming the line, for a malformed row, a quote that is never closed, and two
    columns of one name.
    """
    settings = settings or TableSettings()
    kind = table_format(path, settings.delimiter)
    if kind is None:
        raise UserError(
            f"{path} is no table by its name: name a file that ends in {', '.join(_FORMATS)}, or "
            "one of these compressed, or set `delimiter` for another file of text"
        )
    schema = None
    if kind == "parquet":
        rows: Iterator[Any] = _parquet_rows(path)
        schema = next(rows)
        columns = list(schema.names)
    else:
        rows = (_delimited_rows if kind == "delimited" else _json_rows)(path, settings)
        columns = next(rows, [])  # come before the rows
    twice = next((name for name, count in Counter(columns).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{path} has two columns {twice!r}; rename or remove one of them")
    return Table("line" if schema is None else "row", columns, rows, schema)


def check_column(name: str, columns: Sequence[str], place: str, setting: str) -> None:
    """Raise UserError where `place` has no column `name`, which the setting names."""
    check_columns({setting: name}, columns, place)


def check_columns(name_of: Mapping[str, str], columns: Sequence[str], place: str) -> None:
    """Raise UserError that names all of the columns that `place` lacks, and their settings."""
    missing = {setting: name for setting, name in name_of.items() if name not in columns}
    if missing:
        # Marks that nobody sees, such as those of direction, are written out.
        names = [each if each.isprintable() else ascii(each) for each in columns]
        lacking = " or ".join(map(repr, dict.fromkeys(missing.values())))
        raise UserError(
            f"{place} has no column {lacking}, only "
            f"{', '.join(names)[:200] or 'nothing'}; set {' and '.join(missing)} to the "
            f"{'one' if len(missing) == 1 else 'ones'} you mean"
        )


def has_quotes(path: str, delimiter: str) -> bool:
    """Whether cells may be in quotes; between tabs these are ordinary characters, but in a .csv."""
    return delimiter != "\t" or format_suffix(path) == ".csv"


def delimited_by(path: str, settings: TableSettings) -> str:
    """The delimiter of a file, and its quotes where only the name of the file says them."""
    delimiter = delimiter_of(path, settings)
    is_as_named = delimiter == "\t" and has_quotes(path, delimiter)
    return f"delimiter {delimiter!r}{' with quotes' if is_as_named else ''}"


def _delimited_rows(path: str, settings: TableSettings) -> Iterator[Any]:
    """The names of the columns first, then every row; blank lines are passed over."""
    delimiter = delimiter_of(path, settings)
    quoted = has_quotes(path, delimiter)
    swallowed, commas = SwallowedRows(delimiter), Counter[bool]()
    raw: list[str] = []  # lines of the row

    def kept(lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            raw.append(line)
            yield line

    csv.field_size_limit(LONGEST_RECORD_BYTES)
    with open_text(path, settings.encoding, newline="") as lines:
        reader = csv.reader(
            kept(lines),
            delimiter=delimiter,
            quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
            strict=quoted,
        )
        columns: list[str] = []
        unnamed: list[int] = []
        while True:
            line = reader.line_num + 1
            raw.clear()
            try:
                cells = next(reader)
            except StopIteration:
                swallowed.check(path)
                if not quoted and commas[True] > 1 and not commas[False]:
                    raise UserError(
                        f"{path} has quotes around each cell with a comma and no other, as Excel "
                        "writes them; between tabs they are ordinary characters: rename the file "
                        "to .csv and set `delimiter` to a tab"
                    ) from None
                return
            except csv.Error as error:
                raise UserError(
                    f"the row that begins in line {line:,} of {path} cannot be read ({error}); "
                    "correct its quotes, or save the file with tabs as .tsv, where they are "
                    "ordinary characters"
                ) from error
            if not any(cell.strip() for cell in cells) and len(cells) < 2:
                continue
            check_no_mark(cells[0], f"line {line:,} of {path}")
            check_quotes(cells, raw, delimiter, quoted, f"line {line:,} of {path}")
            if not columns:
                if re.fullmatch("sep=.?", cells[0]):
                    first = raw[0].strip()
                    raise UserError(
                        f"line 1 of {path} is Excel's {first}; remove it, and set `delimiter`"
                    )
                if settings.no_header:
                    columns = [str(number) for number in range(1, len(cells) + 1)]
                    yield columns
                else:
                    columns = [cell.strip() for cell in cells]
                    if len(columns) == 1 and not settings.delimiter:
                        _check_delimiter(columns[0], delimiter, f"line {line:,} of {path}")
                    if columns.count("") > 1:  # of a spreadsheet, behind the last one with values
                        unnamed = [place for place, name in enumerate(columns) if not name]
                    yield [name for place, name in enumerate(columns) if place not in unnamed]
                    continue
            if names_columns(cells, [] if settings.no_header else columns):
                raise UserError(
                    f"line {line:,} of {path} names columns and holds no values; remove it: were "
                    "files joined?"
                )
            if not quoted:
                is_enclosed = list(map(_ENCLOSED.fullmatch, cells))
                commas.update(
                    enclosed is not None and "," in cell
                    for cell, enclosed in zip(cells, is_enclosed, strict=True)
                    if enclosed or "," in cell
                )
            if len(cells) == len(columns):
                swallowed.look(line, raw, cells)
                if any(cells[place].strip() for place in unnamed):
                    raise UserError(
                        f"line {line:,} of {path} has a value in a column without a name; name "
                        "the column, or remove the value"
                    )
                values = dict(zip(columns, cells, strict=True))
                if unnamed:
                    del values[""]
                yield Row(line, values)
            else:
                raise UserError(
                    f"line {line:,} of {path} has {len(cells)} columns where the first row has "
                    f"{len(columns)}; correct or remove it"
                )


def _check_delimiter(name: str, delimiter: str, place: str) -> None:
    """Raise UserError where the only column's name is a row of names, parted by something else."""
    other = next((each for each in _DELIMITERS if each != delimiter and each in name), None)
    if other is not None:
        in_yaml = "'\"\\t\"'" if other == "\t" else f"'\"{other}\"'"
        typed = "$'\\t'" if other == "\t" else f"'{other}'"
        raise UserError(
            f"{place} names one column, {name[:200]!r}; if {typed} parts columns, set `delimiter` "
            f"(of labels --set dataset.source.delimiter={in_yaml}, of a corpus --set "
            f"corpus.sources.0.delimiter={in_yaml}, predict: --delimiter {typed}), otherwise "
            "rename the column"
        )


def _json_rows(path: str, settings: TableSettings) -> Iterator[Any]:
    """The columns first: every key of any line. The lines are read twice, for their keys first."""
    columns: dict[str, None] = {}
    for _, record in _json_objects(path, settings):
        columns.update(dict.fromkeys(record))
    yield list(columns)
    for line, record in _json_objects(path, settings):
        yield Row(line, {name: record.get(name) for name in columns})


def _json_objects(path: str, settings: TableSettings) -> Iterator[tuple[int, dict[str, Any]]]:
    with open_text(path, settings.encoding) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, json_object(line, f"line {number:,} of {path}")


def json_object(line: str, place: str) -> dict[str, Any]:
    """The object in a line of JSON; half a surrogate pair, such as `\\ud800`, becomes U+FFFD.

    Raises UserError, which names the `place`, where it holds none.
    """
    try:
        record = json.loads(line, object_pairs_hook=object_of_pairs)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON ({error}); correct or remove it") from error
    if not isinstance(record, dict):
        raise UserError(
            f"{place} is not a JSON object but {line.strip()[:60]!r}; correct or remove it"
        )
    # Most lines have no escapes; looking at every value would take as long as reading them.
    return without_lone_surrogates(record) if "\\u" in line else record


def object_of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `json.loads`; raises ValueError where a name comes twice in it."""
    values = dict(pairs)
    if len(values) < len(pairs):
        name = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{name!r} comes twice in an object")
    return values


def without_lone_surrogates(value: Any) -> Any:
    """A JSON value with U+FFFD in place of lone surrogates in its texts."""
    if isinstance(value, str):
        return value if value.isascii() else _LONE_SURROGATES.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_lone_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {name: without_lone_surrogates(each) for name, each in value.items()}
    return value


@contextmanager
def open_parquet(
    path: str, columns: list[str] | None = None, is_read: Callable[[int], bool] | None = None
) -> Iterator[tuple["pa.Schema", Iterator["pa.RecordBatch"]]]:
    """Schema and batches of a Parquet file.

    Of `columns` and the row groups whose first byte `is_read` accepts, or all. Raises UserError for
    a file that is none, or not whole.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def is_chosen(row_group: Any) -> bool:
        if is_read is None:
            return True
        column = row_group.column(0)
        return is_read(int(column.dictionary_page_offset or column.data_page_offset))

    with open_binary(path) as stream:
        check_is_no_pointer(stream.read(SAMPLE_BYTES), path)
        stream.seek(0)
        try:
            file = pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES)
            groups = [
                index
                for index in range(file.num_row_groups)
                if is_chosen(file.metadata.row_group(index))
            ]
            yield file.schema_arrow, file.iter_batches(_ROWS_AT_ONCE, groups, columns)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and (type(error) is not OSError or error.errno):
                raise  # of the disk or the network: Arrow's own have neither a kind nor a number
            raise UserError(
                f"{path} is not a whole Parquet file ({error}); fetch it again"
            ) from error


def is_shown(letter: str) -> bool:
    """Whether a character is more than white space or an invisible mark; a new emoji is, too."""
    return not letter.isspace() and unicodedata.category(letter) not in ("Cc", "Cf")


def is_nothing(value: Any) -> bool:
    """Whether a cell has no value: null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def cell_text(value: Any) -> str:
    """A cell as text, without white space at its ends; null and NaN are empty.

    Raises ValueError for bytes that are not UTF-8.
    """
    if is_nothing(value):
        return ""
    return (value.decode() if isinstance(value, bytes) else str(value)).strip()


def _parquet_rows(path: str) -> Iterator[Any]:
    """The schema first."""
    with open_parquet(path) as (schema, batches):
        yield schema
        number = 0
        for batch in batches:
            columns = [
                _values_of(column, name, path)
                for name, column in zip(schema.names, batch.columns, strict=True)
            ]
            for values in zip(*columns, strict=True):
                number += 1
                yield Row(number, dict(zip(schema.names, values, strict=True)))


def _values_of(column: "pa.Array", name: str, path: str) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ValueError, ArithmeticError, LookupError) as error:  # times beyond Python's, zones
        raise UserError(
            f"the column {name!r} of {path} cannot be read ({error}); leave it out"
        ) from error
