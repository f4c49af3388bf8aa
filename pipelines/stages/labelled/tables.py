"""Records of tables: CSV, TSV, JSONL and Parquet files, by the rules of `pipelines.core.reading`,
and whatever else has rows."""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final

from pipelines.core.errors import UserError
from pipelines.core.reading.parquet import whole_file
from pipelines.core.reading.records import BadRow, delimited_rows, dialect_of, json_record
from pipelines.core.reading.text import Tally, refuse_binary, restored_in
from pipelines.stages.labelled.cells import is_nothing, labels_in, tags_in, text_in, words_in
from pipelines.stages.labelled.choices import choice_fields, with_indices
from pipelines.stages.labelled.class_names import features_of_schema, names_of_classes
from pipelines.stages.labelled.columns import Columns, columns_of
from pipelines.stages.labelled.records import Record, format_of, opened
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.stages.labelled.squad import NO_SQUAD, record_of
from pipelines.tasks import Form

_HEAD_BYTES: Final = 65536
_ROWS_A_BATCH: Final = 1024
_LEAST_ROWS: Final = 3  # a header, a record, and one that may break off
_NOT_AGREED: Final = "-"  # of SNLI and MultiNLI: those who labelled the pair did not agree

Row = tuple[str, list[Any]]  # where it stands, and its cells


def rows_of_file(
    path: str, form: Form, refuse: Callable[[BadRow], None], head_bytes: int | None = None
) -> Iterator[Row]:
    """The rows of a table, the names of its columns first where the format has any.

    With `head_bytes` only that much of the file is looked at, and a row that breaks off there is no
    fault. One that cannot be read is given to `refuse`, and left out where that returns.
    """
    rows = list(_rows(path, form, head_bytes))
    if head_bytes is not None and len(rows) < _LEAST_ROWS:  # the first record is longer than that
        rows, head_bytes = list(_rows(path, form, None)), None
    for row in rows if head_bytes is None else rows[:-1]:
        if isinstance(row, BadRow):
            refuse(row)
        else:
            yield row


def table_records(
    rows: Iterable[Row], form: Form, settings: LabelledFile | LabelledDataset, path: str,
    tally: Tally, say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """The rows below their header as records; one without a text is left out and counted.

    Which columns were taken is told to `say`.
    """
    whole = list(rows)
    if not whole:
        raise UserError(f"{path} must hold labelled texts, found no row in it")
    table = [cells for _, cells in whole]
    columns = columns_of(settings, form, table)
    say(columns.said(table))
    if columns.is_taken_for_header:
        tally.dropped["first rows taken for a header"] += 1
    records = _records(whole[columns.first_row :], form, columns, settings, tally)
    yield from with_indices(list(records)) if form == "choices" else records


def _records(
    rows: Iterable[Row], form: Form, columns: Columns, settings: LabelledFile | LabelledDataset,
    tally: Tally,
) -> Iterator[Record]:  # fmt: skip
    for place, cells in rows:
        text = cells[columns.text]
        has_text = not is_nothing(text) and str(text).strip()
        if form in ("texts", "pairs", "choices") and not has_text:
            tally.dropped["rows without a text"] += 1
            continue
        group = "" if columns.group is None else text_in(cells[columns.group], tally)
        if form == "words":
            assert columns.label is not None
            fields = {
                "words": words_in(cells[columns.text], tally),
                "tags": tags_in(cells[columns.label], tally),
            }
        elif form == "questions":
            fields = _question(cells, columns, tally)
        elif form == "pairs":
            fields = _pair(cells, columns, tally)
        elif form == "choices":
            fields = choice_fields(cells, columns, tally)
        else:
            fields = _texts(cells, columns, settings, tally)
        yield Record(place, group, fields)


def _texts(
    cells: list[Any], columns: Columns, settings: LabelledFile | LabelledDataset, tally: Tally
) -> dict[str, Any]:
    assert columns.label is not None
    fields: dict[str, Any] = {"text": text_in(cells[columns.text], tally)}
    if columns.second is not None:
        fields["second_text"] = text_in(cells[columns.second], tally)
    label = cells[columns.label]
    # Lists are left to the family, which says what a label must be.
    fields["label"] = label if isinstance(label, list | dict) else text_in(label, tally)
    if fields["label"] == _NOT_AGREED and columns.is_inference:
        fields["label"] = ""
    fields["labels"] = labels_in(label, settings.label_separator, tally)
    return fields


def _pair(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    assert columns.second is not None
    places = {"second_text": columns.second, "label": columns.label, "other_text": columns.other}
    read = {
        name: None if place is None else text_in(cells[place], tally)
        for name, place in places.items()
    }
    return {"text": text_in(cells[columns.text], tally), **read}


def _question(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    """Answers of another structure stay as they are, for the family to refuse."""
    assert columns.label is not None
    assert columns.second is not None
    question = {
        "id": "" if columns.name is None else str(cells[columns.name]),
        "question": text_in(cells[columns.text], tally),
        "answers": restored_in(cells[columns.label], tally.repaired),
    }
    context = restored_in(cells[columns.second], tally.repaired)
    try:
        return record_of(question, context, "").fields
    except NO_SQUAD:
        return {**question, "context": context, "starts": None}


def _rows(path: str, form: Form, head_bytes: int | None) -> Iterator[Row | BadRow]:
    """Rows of the file, the names of the columns first where the format has any."""
    kind = format_of(path, form)
    with opened(path) as whole:
        if kind == "parquet":
            yield from _rows_of_parquet(path, whole, form, head_bytes is not None)
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
    """Every key of any line is a column, which is empty where a line has no such key."""
    records = [
        (number, json_record(line, number))
        for number, line in enumerate(stream, start=1)
        if line.strip()
    ]
    header: dict[str, None] = {}
    for _, record in records:
        if not isinstance(record, BadRow):
            header.update(dict.fromkeys(record))
    if header:
        yield _line(records[0][0]), list(header)
    for number, record in records:
        if isinstance(record, BadRow):
            yield record
        else:
            yield _line(number), [record.get(name) for name in header]


def _rows_of_parquet(path: str, stream: IO[bytes], form: Form, only_head: bool) -> Iterator[Row]:
    import pyarrow.parquet as pq

    with whole_file(path):
        file = pq.ParquetFile(stream)
        said = names_of_classes(features_of_schema(file.schema_arrow, path), form)
        yield _line(0), list(file.schema_arrow.names)
        number = 0
        for batch in file.iter_batches(_ROWS_A_BATCH):
            for values in batch.to_pylist():
                number += 1
                yield (
                    _line(number),
                    [said[name](each) if name in said else each for name, each in values.items()],
                )
            if only_head:
                return


def _line(number: int) -> str:
    return f"line {number:,}"
