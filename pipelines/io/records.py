"""Records of CSV, TSV, JSON lines and Parquet, read by one set of rules.

Bytes are UTF-8, with or without a byte order mark; others come as surrogate escapes, those of
Parquet as bytes, for `text.restored` to mend and count. Fields lie between tabs in .tsv and .txt
files and between commas in all others. Quotes enclose fields where commas part them, and are
ordinary characters where tabs do, as in GLUE's files; one that is never closed, or that closes
before its field ends, makes a bad row where reading is strict, and is a character of its text where
it is not. A row has as many fields as the first one, a JSON line holds an object; what does not
comes as a `BadRow`, which its reader counts or refuses.
"""

import codecs
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pipelines.config.errors import UserError
from pipelines.io.files import format_suffix, is_local, open_binary, require_regular, whole_file
from pipelines.io.text import SAMPLE_BYTES, check_is_text, restored_in, with_texts

if TYPE_CHECKING:
    import pyarrow as pa

LONGEST_RECORD_BYTES: Final = 256 * 2**20
# Default names of a column with the text.
TEXT_COLUMNS: Final = ("text", "sentence", "message", "content", "review", "document", "body")
NOT_JSON: Final = "lines that are not JSON"
NO_OBJECT: Final = "lines that are not a JSON object"
OTHER_LENGTH: Final = "rows with another number of fields than the first"
NOT_DELIMITED: Final = "rows that cannot be parsed"
_ROWS_A_BATCH: Final = 1024
_DELIMITERS: Final = {",": "commas", "\t": "tabs", ";": "semicolons"}
_LONGEST_NAME: Final = 64  # characters; longer ones are sentences
_PARQUET_BUFFER_BYTES: Final = 2**20
_LONE_SURROGATES: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")


TableFormat = Literal["delimited", "jsonl", "parquet"]
Decoders = Mapping[str, Callable[[Any], Any]]  # of a column's values, by its name


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the fields of a row are separated."""

    delimiter: str
    quoted: bool  # quotes enclose fields; else they are ordinary characters
    is_strict: bool = True  # a quote that encloses no field is a fault, which may hide rows


class Row(NamedTuple):
    """The fields of a row that begins in line `line`, counted from 1."""

    line: int
    cells: list[Any]


class BadRow(NamedTuple):
    """A row that breaks the rules: where it begins, which rule, and what was found."""

    line: int
    reason: str  # the same for all such rows
    found: str

    def refusal(self, path: str, *, advice: str = "") -> UserError:
        """The error that names the row, and what else than mending it there is to do."""
        return UserError(
            f"line {self.line:,} of {path} is not a record like the others ({self.found}); "
            f"correct or remove it{advice}"
        )


def dialect_of(
    path: str,
    delimiter: str | None = None,
    quoted: bool | None = None,
    *,
    is_strict: bool = True,
) -> Dialect:
    """What is set, and for the rest what the file's name says."""
    has_tabs = format_suffix(path) in (".tsv", ".txt")
    return Dialect(
        delimiter or ("\t" if has_tabs else ","),
        (not has_tabs) if quoted is None else quoted,
        is_strict,
    )


def opened(path: str) -> AbstractContextManager[IO[bytes]]:
    """The bytes of a file, decompressed; raises UserError unless it is one and readable."""
    if is_local(path):
        require_regular(path.partition("://")[2] or path)
    return open_binary(path)


def table_rows(
    path: str,
    table_format: TableFormat,
    *,
    head_bytes: int | None = None,
    decoders_of: "Callable[[pa.Schema], Decoders] | None" = None,
) -> Iterator[Row | BadRow]:
    """The rows of a table in a file, the names of its columns first.

    With `head_bytes` only the rows of so many bytes are read (of Parquet the first batch), of which
    the last one may break off. `decoders_of` turns the values of a Parquet file's columns into
    others. Raises UserError for a file that cannot be read or is no text.
    """
    with opened(path) as whole:
        if table_format == "parquet":
            yield from _parquet_rows(path, whole, head_bytes is not None, decoders_of)
            return
        stream = whole if head_bytes is None else io.BytesIO(whole.read(head_bytes))
        check_is_text(stream.read(SAMPLE_BYTES), path)
        stream.seek(0)
        if table_format == "jsonl":
            yield from _json_rows(stream)
        else:
            dialect = dialect_of(path)
            rows = delimited_rows(stream, dialect)
            first = next(rows, None)
            if first is not None:
                check_delimiter(first, path, dialect)
                yield first
            yield from rows


def _json_rows(stream: IO[bytes]) -> Iterator[Row | BadRow]:
    """Every key of any line is a column, which is empty where a line has no such key.

    The lines are read twice, for their keys first: all of them would need ten times their bytes.
    """
    header: dict[str, None] = {}
    first = 0
    for number, record in _json_records(stream):
        first = first or number
        if not isinstance(record, BadRow):
            header.update(dict.fromkeys(record))
    stream.seek(0)
    if header:
        yield Row(first, list(header))
    for number, record in _json_records(stream):
        if isinstance(record, BadRow):
            yield record
        else:
            yield Row(number, [record.get(name) for name in header])


def _json_records(stream: IO[bytes]) -> Iterator[tuple[int, dict[str, Any] | BadRow]]:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            yield number, json_record(line, number)


def _parquet_rows(
    path: str,
    stream: IO[bytes],
    only_head: bool,
    decoders_of: "Callable[[pa.Schema], Decoders] | None",
) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with whole_file(path):
        # Without a buffer a row group is read whole, and a file may have only one.
        file = pq.ParquetFile(stream, buffer_size=_PARQUET_BUFFER_BYTES)
        names = list(file.schema_arrow.names)
        decoders = decoders_of(file.schema_arrow) if decoders_of is not None else {}
        yield Row(0, names)
        number = 0
        for batch in file.iter_batches(_ROWS_A_BATCH):
            for values in zip(*map(values_of, batch.columns), strict=True):
                number += 1
                yield Row(number, [
                    decoders[name](value) if name in decoders else value
                    for name, value in zip(names, values, strict=True)
                ])  # fmt: skip
            if only_head:
                return


def values_of(column: "pa.Array") -> list[Any]:
    """The values of an Arrow column; bytes where a text is not UTF-8, for `text.restored`."""
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return column.cast("binary").to_pylist()


def is_nothing(value: Any) -> bool:
    """Whether a cell has no value: null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def check_names(names: Sequence[str], path: str) -> None:
    """Raise UserError for two columns of one name, of which a reader would lose one."""
    twice = next((name for name, count in Counter(names).items() if name and count > 1), None)
    if twice is not None:
        raise UserError(f"{path} has two columns {twice!r}; rename or remove one of them")


def delimited_rows(stream: IO[bytes], dialect: Dialect) -> Iterator[Row | BadRow]:
    """Rows with fields, the first one's number in each; blank lines are passed over."""
    csv.field_size_limit(LONGEST_RECORD_BYTES)
    with io.TextIOWrapper(
        stream, encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as lines:
        reader = csv.reader(
            lines,
            delimiter=dialect.delimiter,
            quoting=csv.QUOTE_MINIMAL if dialect.quoted else csv.QUOTE_NONE,
            strict=dialect.quoted and dialect.is_strict,
        )
        width = 0
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(line, NOT_DELIMITED, f"found that {error}")
                continue
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if not width:
                width, cells = len(cells), restored_in(cells, Counter())
            if len(cells) == width:
                yield Row(line, cells)
            else:
                found = f"found {len(cells)} fields where the first row has {width}"
                yield BadRow(line, OTHER_LENGTH, found)


def check_delimiter(first: Row | BadRow, path: str, dialect: Dialect, *, advice: str = "") -> None:
    """Raise UserError if a first row of one field seems to have several, as Excel writes them."""
    if isinstance(first, BadRow) or len(first.cells) != 1:
        return
    for delimiter, called in _DELIMITERS.items():
        names = first.cells[0].split(delimiter)
        if len(names) > 1 and all(0 < len(name.strip()) <= _LONGEST_NAME for name in names):
            raise UserError(
                f"the columns of {path} seem to be separated by {called}, and its name says "
                f"{_DELIMITERS[dialect.delimiter]}; save it as .csv with commas or as .tsv with "
                f"tabs{advice}"
            )


def json_record(line: bytes, number: int) -> dict[str, Any] | BadRow:
    """The object in a line; a lone surrogate escape such as `\\ud800` becomes U+FFFD."""
    try:
        text = line.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return BadRow(number, NOT_JSON, f"found no JSON ({error})")
    if not isinstance(record, dict):
        return BadRow(number, NO_OBJECT, f"found no JSON object but {line[:60]!r}")
    if "\\u" not in text:  # most lines, for which looking at every value would take as long again
        return record
    return without_lone_surrogates(record)


def without_lone_surrogates(value: Any) -> Any:
    """A JSON value with U+FFFD in place of the lone surrogates of its texts."""
    return with_texts(value, partial(_LONE_SURROGATES.sub, "\ufffd"))
