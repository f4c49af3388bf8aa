"""Records of labelled data, whatever their format: fields by their role, and where they stand.

By the family's form a record has

- texts: `text`, `label` or (multi-label) `labels`, and for a pair `second_text`;
- pairs: `text`, `second_text`, `label` (None where there is no such column), `other_text` (None);
- choices: `text`, `choices`, `label`;
- words: `words`, `tags`;
- questions: `id`, `question`, `context`, `answers`, `starts`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.core.reading.files import format_suffix, is_local, open_binary, require_regular
from pipelines.core.reading.records import dialect_of
from pipelines.tasks import Form

_TABLES: Final = {
    ".csv": "delimited",
    ".tsv": "delimited",
    ".txt": "delimited",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_LINES_AND_COLUMNS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_FORMATS: Final[dict[Form, dict[str, str]]] = {
    "texts": _TABLES,
    "pairs": _TABLES,
    "choices": _TABLES,
    "words": _LINES_AND_COLUMNS,
    "questions": _LINES_AND_COLUMNS | {".json": "squad"},
}
_SAID: Final[dict[Form, str]] = {
    "texts": "a CSV, TSV, JSONL or Parquet file",
    "pairs": "a CSV, TSV, JSONL or Parquet file",
    "choices": "a CSV, TSV, JSONL or Parquet file",
    "words": "a file of CoNLL's columns, JSONL or Parquet",
    "questions": "SQuAD's JSON, JSONL or Parquet",
}
_SUFFIXES: Final[dict[Form, str]] = {
    "texts": ".csv, .tsv, .jsonl or .parquet",
    "pairs": ".csv, .tsv, .jsonl or .parquet",
    "choices": ".csv, .tsv, .jsonl or .parquet",
    "questions": ".json, .jsonl or .parquet",
}
_BLOCK_BYTES: Final = 2**20


class Record(NamedTuple):
    """One record of a file."""

    place: str  # where it stands: "line 7", "question 5733"
    group: str  # what it belongs to; empty: the family says
    fields: dict[str, Any]


def format_of(path: str, form: Form) -> str:
    """`delimited`, `jsonl`, `parquet`, `conll` or `squad`, by form and suffix.

    Raises UserError for a suffix that the form is not read from.
    """
    if not path:
        raise UserError(f"labelled.source.path must name {_SAID[form]}, found nothing")
    kind = _FORMATS[form].get(format_suffix(path), "conll" if form == "words" else "")
    if not kind:
        raise UserError(
            f"the labelled file must end in {_SUFFIXES[form]} (or one of these compressed), found "
            f"{path}"
        )
    return kind


def name_of_file(path: str, form: Form) -> dict[str, str]:
    """What decides the records of a file: its bytes, decompressed, and how they are parsed.

    Raises UserError where it is not there, not readable or of an unknown format.
    """
    parsing = format_of(path, form)
    if parsing == "delimited":
        dialect = dialect_of(path)
        parsing = f"delimiter {dialect.delimiter!r}, quotes {'enclose' if dialect.quoted else ''}"
    digest = hashlib.sha256()
    with opened(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return {"file": digest.hexdigest(), "format": parsing}


def opened(path: str) -> AbstractContextManager[IO[bytes]]:
    """The bytes of the file, decompressed; raises UserError unless it is one and readable."""
    if is_local(path):
        require_regular(path.removeprefix("file://"))
    return open_binary(path)


def limited(stream: IO[bytes], head_bytes: int | None) -> Iterator[bytes]:
    """The lines of a stream, or those that begin in its first bytes."""
    num_read = 0
    for line in stream:
        yield line
        num_read += len(line)
        if head_bytes is not None and num_read >= head_bytes:
            return
