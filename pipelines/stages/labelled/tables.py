"""Records of tables: CSV, TSV, JSONL and Parquet files, by the rules of `pipelines.core.reading`,
and whatever else has rows."""

import io
import math
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

from pipelines.core.errors import UserError
from pipelines.core.reading.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.core.reading.text import refuse_binary, restored
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.columns import Columns, columns_of
from pipelines.stages.labelled.records import Record, format_of, opened
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.stages.labelled.squad import record_of
from pipelines.tasks import Form

_HEAD_BYTES: Final = 65536
_ROWS_A_BATCH: Final = 1024

Row = tuple[str, list[Any]]  # where it stands, and its cells


def rows_of_file(path: str, form: Form, head_bytes: int | None = None) -> Iterator[Row]:
    """The rows of a table, the names of its columns first where the format has any.

    With `head_bytes` only that much of the file is looked at, and a row that breaks off there is no
    fault. Raises UserError, naming the line, for a row that cannot be read.
    """
    rows = list(_rows(path, form, head_bytes))
    for row in rows if head_bytes is None else rows[:-1]:
        if isinstance(row, BadRow):
            raise row.refusal(path)
        yield row


def table_records(
    rows: Iterable[Row], form: Form, settings: LabelledFile | LabelledDataset, path: str,
    tally: Tally,
) -> Iterator[Record]:  # fmt: skip
    """The rows below their header as records; one without a text is left out and counted."""
    whole = list(rows)
    if not whole:
        raise UserError(f"{path} must hold labelled texts, found no row in it")
    columns = columns_of(settings, form, [cells for _, cells in whole])
    for place, cells in whole[columns.first_row :]:
        if form in ("texts", "pairs", "choices") and not str(cells[columns.text] or "").strip():
            tally.dropped["rows without a text"] += 1
            continue
        group = "" if columns.group is None else _text(cells[columns.group], tally)
        if form == "words":
            assert columns.label is not None
            fields = {
                "words": _list(cells[columns.text], tally),
                "tags": _list(cells[columns.label], tally),
            }
        elif form == "questions":
            fields = _question(cells, columns, tally, path, place)
        elif form == "pairs":
            fields = _pair(cells, columns, tally)
        else:
            fields = _texts(cells, columns, settings, tally)
        yield Record(place, group, fields)


def _texts(
    cells: list[Any], columns: Columns, settings: LabelledFile | LabelledDataset, tally: Tally
) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": _text(cells[columns.text], tally)}
    if columns.second is not None:
        fields["second_text"] = _text(cells[columns.second], tally)
    raw = 0 if columns.label is None else cells[columns.label]
    fields["label"] = _text(raw, tally)
    several = raw if isinstance(raw, list) else fields["label"].split(settings.label_separator)
    fields["labels"] = [text for each in several if (text := str(each).strip())]
    if columns.choices:
        found: list[Any] = [cells[place] for place in columns.choices]
        if len(found) == 1 and isinstance(found[0], dict):  # of columns, as `datasets` has it
            found = found[0].get("text", [])
        elif len(found) == 1 and isinstance(found[0], list):
            found = found[0]
        start = "" if columns.start is None else _text(cells[columns.start], tally) + " "
        texts = [_text(each, tally) for each in found]
        fields["choices"] = [f"{start}{text}" for text in texts if text]
    return fields


def _pair(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    assert columns.second is not None
    places = {"second_text": columns.second, "label": columns.label, "other_text": columns.other}
    read = {
        name: None if place is None else _text(cells[place], tally)
        for name, place in places.items()
    }
    return {"text": _text(cells[columns.text], tally), **read}


def _question(
    cells: list[Any], columns: Columns, tally: Tally, path: str, place: str
) -> dict[str, Any]:
    assert columns.label is not None
    assert columns.second is not None
    answers = cells[columns.label]
    try:
        return record_of(
            {
                "id": "" if columns.name is None else str(cells[columns.name]),
                "question": _text(cells[columns.text], tally),
                "answers": answers,
            },
            str(cells[columns.second]),
            "",
        ).fields
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{place} of {path} must have answers with text and answer_start, found "
            f"{str(answers)[:60]!r}; mend or remove it"
        ) from error


def _rows(path: str, form: Form, head_bytes: int | None) -> Iterator[Row | BadRow]:
    """Rows of the file, the names of the columns first where the format has any."""
    kind = format_of(path, form)
    with opened(path) as whole:
        if kind == "parquet":
            yield from _rows_of_parquet(path, whole, head_bytes is not None)
            return
        stream = whole if head_bytes is None else io.BytesIO(whole.read(head_bytes))
        head = stream.read(_HEAD_BYTES)
        refuse_binary(head, path)
        stream.seek(0)
        if kind == "jsonl":
            yield from _rows_of_json(stream)
            return
        for row in delimited_rows(stream, dialect_of(path)):
            yield row if isinstance(row, BadRow) else (_line(row.line), list(row.cells))


def _rows_of_json(stream: IO[bytes]) -> Iterator[Row | BadRow]:
    header: list[str] = []
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        record = json_record(line, number)
        if isinstance(record, BadRow):
            yield record
            continue
        if not header:
            header = list(record)
            yield _line(number), list(header)
        yield _line(number), [record.get(key) for key in header]


def _rows_of_parquet(path: str, stream: IO[bytes], only_head: bool) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(stream)
        yield _line(0), list(file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(_ROWS_A_BATCH):
            for values in batch.to_pylist():
                number += 1
                yield _line(number), list(values.values())
            if only_head:
                return
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{path} must be a whole Parquet file, but it cannot be read ({error}); fetch it again"
        ) from error


def _line(number: int) -> str:
    return f"line {number:,}"


def _text(value: Any, tally: Tally) -> str:
    """A value as the text of a CSV file; nothing and NaN are empty."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return restored(str(value), tally.repaired).strip()


def _list(value: Any, tally: Tally) -> list[str]:
    """A list of texts; a text is parted at its white space."""
    if isinstance(value, str):
        return restored(value, tally.repaired).split()
    return [_text(each, tally) for each in value or ()]
