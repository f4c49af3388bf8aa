"""Tables of questions in files: lines of text, CSV, TSV, JSONL and Parquet."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.files import format_suffix, is_local, open_binary, require_regular
from pipelines.core.reading.parquet import whole_file
from pipelines.core.reading.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.core.reading.text import Tally, decode, refuse_binary, restored_in
from pipelines.stages.labelled.cells import is_nothing, words_in, written_in

Table = dict[str, list[Any]]

_LISTS: Final = "choices"  # the column whose cells hold several texts
_WORDS: Final = "words"  # split already; they stand in place of texts
_TOKENS: Final = "tokens"  # what data sets call them, too


class AskedTable(NamedTuple):
    """A file with questions: what is asked, all that stands in it, and what was taken for what."""

    asked: Table
    own: Table  # every column of the file, under its own name
    taken: dict[str, str]  # the file's name of each column that is asked


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
    numbers, found = _read(path)
    return NumberedTable(numbers, _asked(path, found, renamed, wanted).asked)


def read_asked_table(path: str, renamed: Mapping[str, str], wanted: Sequence[str]) -> AskedTable:
    """Likewise, with all other columns of the file and the names of those that were taken."""
    return _asked(path, _read(path).columns, renamed, wanted)


def _read(path: str) -> NumberedTable:
    """All columns of a file."""
    if is_local(path):
        require_regular(path.removeprefix("file://"))
    form = format_of(path)
    with open_binary(path) as stream:
        if form == "parquet":
            return _of_parquet(path, stream)
        if form == "jsonl":
            return _of_json(path, stream)
        if form in ("csv", "tsv"):
            return _of_delimited(path, stream)
        data = stream.read()
        refuse_binary(data, path)
        lines = numbered_lines(decode(data, Counter()))
        return NumberedTable(list(lines), {"text": list(lines.values())})


def _asked(
    path: str, found: Table, renamed: Mapping[str, str], wanted: Sequence[str]
) -> AskedTable:
    """The columns `wanted` of those that were found in a file."""
    names = {name: renamed.get(name, name) for name in wanted}
    if _WORDS in names and "text" in renamed:
        del names[_WORDS]  # one column was named: that one is asked
    elif _WORDS in names and _WORDS not in found and _TOKENS in found:
        names[_WORDS] = _TOKENS
    taken = {name: theirs for name, theirs in names.items() if theirs in found}
    missing = next((names[name] for name in renamed if name in names and name not in taken), None)
    if missing is not None:
        raise UserError(
            f"{path} must have a column {missing!r}, found {', '.join(found)[:200]}; name "
            "another one"
        )
    asked = {name: found[theirs] for name, theirs in taken.items()}
    is_text = format_of(path) in ("csv", "tsv")
    if _LISTS in asked and is_text:
        asked[_LISTS] = [_list_in(cell, path) for cell in asked[_LISTS]]
    return AskedTable(_with_words(asked, is_text) if _WORDS in wanted else asked, found, taken)


def _with_words(asked: Table, is_text: bool) -> Table:
    """Words that are split already, in a column of their own; the other rows keep their text."""
    texts, words = asked.pop("text", []), asked.pop(_WORDS, [])
    texts, words = texts or [None] * len(words), words or [None] * len(texts)
    written = [_written_words(text) if is_text else text for text in texts]
    split = [
        value if isinstance(value, list) else None if is_nothing(word) else _words(word, is_text)
        for value, word in zip(written, words, strict=True)
    ]
    alone = [None if value is not None else text for value, text in zip(split, texts, strict=True)]
    if any(value is not None for value in split):
        asked = {_WORDS: split, **asked}
    if split.count(None):
        asked = {"text": alone, **asked}
    return asked


def _words(cell: Any, is_text: bool) -> list[str]:
    """A list, or a text that is parted at its white space, as a tagger's training data are."""
    return words_in(_written_words(cell) if is_text else cell, Tally())


def _written_words(cell: Any) -> Any:
    """The list that a cell writes out, where it does."""
    written = written_in(cell) if isinstance(cell, str) and cell.startswith("[") else None
    return written if isinstance(written, list) else cell


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
    """The list that a cell writes out, as `written_tables` does; UserError where it writes none."""
    if cell is None:
        return None
    written = written_in(cell)
    if not isinstance(written, list):
        raise UserError(
            f"a cell of {path} with choices must write out a list, such as "
            f'["one", "another"], found {cell[:60]!r}; write one, or give .jsonl or .parquet'
        )
    return written
