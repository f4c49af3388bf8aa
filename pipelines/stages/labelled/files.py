"""Reading labelled texts from CSV, TSV and JSONL files."""

import csv
import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

import fsspec

from pipelines.core.errors import UserError
from pipelines.stages.labelled.settings import LabelledFileTask

_TEXT_NAMES = ("text", "sentence", "message", "content", "review", "document", "body")
_LABEL_NAMES = ("label", "class", "category", "target", "tag")
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")

csv.field_size_limit(2**31 - 1)


def fingerprint_of_file(path: str) -> str:
    """SHA-256 of the file's bytes."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def read_labelled_file(settings: LabelledFileTask) -> Iterator[tuple[str, str]]:
    """Yield (text, label) for each row; rows with an empty text or label are left out.

    In TSV quotes are ordinary characters, as in GLUE's files. Two columns without a header are
    understood: the column with fewer different values is the label.
    """
    path = settings.path
    rows = _read_rows(path)
    if not rows:
        raise UserError(f"{path} must hold labelled texts, found no row in it")
    text_index, label_index, first_row = _columns(settings, rows)
    for number, row in enumerate(rows[first_row:], start=first_row + 1):
        if max(text_index, label_index) >= len(row):
            raise UserError(
                f"every row of {path} must have {len(rows[0])} columns, found {len(row)} in row "
                f"{number}; mend or remove that row"
            )
        text, label = row[text_index].strip(), row[label_index].strip()
        if text and label:
            yield text, label


def _read_bytes(path: str) -> bytes:
    if not path:
        raise UserError("task.labelled.path must name a CSV, TSV or JSONL file, found nothing")
    try:
        with fsspec.open(path, "rb", compression="infer") as stream:
            return stream.read()
    except FileNotFoundError:
        raise UserError(f"the labelled file must exist, found none at {path}") from None
    except PermissionError:
        raise UserError(f"the labelled file {path} must be readable, but may not be read") from None
    except IsADirectoryError:
        raise UserError(f"the labels must be one file, but {path} is a folder") from None


def _read_rows(path: str) -> list[list[str]]:
    try:
        text = _read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} must be text in UTF-8, found byte {error.object[error.start]:#04x} at "
            f"{error.start}; convert it first"
        ) from None
    name = PurePosixPath(path.lower())
    suffix = PurePosixPath(name.stem).suffix if name.suffix in _COMPRESSIONS else name.suffix
    if suffix == ".csv":
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    if suffix in (".tsv", ".txt"):
        return [line.split("\t") for line in text.splitlines() if line.strip()]
    if suffix in (".jsonl", ".ndjson"):
        return _rows_of_json(path, text)
    raise UserError(
        f"the labelled file must end in .csv, .tsv or .jsonl (or one of these compressed), "
        f"found {path}"
    )


def _rows_of_json(path: str, text: str) -> list[list[str]]:
    """The objects as rows, the first of which is the header."""
    header: list[str] = []
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"line {number} of {path} must be JSON: {error}") from None
        if not isinstance(item, dict):
            raise UserError(f"line {number} of {path} must be a JSON object, found {line[:60]!r}")
        header = header or list(item)
        rows.append([str(item.get(key, "")) for key in header])
    return [header, *rows] if rows else []


def _columns(settings: LabelledFileTask, rows: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """Index of the text, index of the label, and the first row that holds data."""
    header = [cell.strip() for cell in rows[0]]
    if settings.text_column or settings.label_column:
        text = _named(settings, "text_column", header, _TEXT_NAMES)
        return text, _named(settings, "label_column", header, _LABEL_NAMES), 1
    lowered = [cell.lower() for cell in header]
    text_found = [lowered.index(name) for name in _TEXT_NAMES if name in lowered]
    label_found = [lowered.index(name) for name in _LABEL_NAMES if name in lowered]
    if text_found and label_found:
        return text_found[0], label_found[0], 1
    if len(header) != 2:
        raise UserError(
            f"the columns of {settings.path} must be told: found {', '.join(header)[:200]}; name "
            "them with text_column and label_column"
        )
    values = [Counter(row[column] for row in rows if len(row) == 2) for column in (0, 1)]
    label = 0 if len(values[0]) <= len(values[1]) else 1
    # A first row whose label occurs nowhere else is a header.
    is_header = len(rows) > 1 and values[label][rows[0][label]] == 1
    return 1 - label, label, int(is_header)


def _named(
    settings: LabelledFileTask, setting: str, header: Sequence[str], usual: Sequence[str]
) -> int:
    """Index of the column that `setting` names, or of one with a usual name."""
    wanted = getattr(settings, setting)
    candidates = [wanted] if wanted else list(usual)
    for name in candidates:
        if name in header:
            return header.index(name)
    raise UserError(
        f"{settings.path} must have a column {' or '.join(repr(name) for name in candidates)}, "
        f"found {', '.join(header)[:200]}; set {setting} to the one you mean"
    )
