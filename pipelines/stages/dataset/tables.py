"""Records of tables: CSV, TSV, JSONL and Parquet files, and the rows of datasets."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from pipelines.config.errors import UserError
from pipelines.io import records
from pipelines.io.records import BadRow, check_names, is_nothing, table_rows
from pipelines.io.text import Tally, restored_in
from pipelines.stages.dataset.columns import Columns, columns_of
from pipelines.stages.dataset.hugging_face import class_names_of_schema
from pipelines.stages.dataset.records import (
    NO_SQUAD,
    Record,
    cell_in,
    format_of,
    labels_in,
    squad_record,
    tags_in,
    text_in,
    words_in,
    written_in,
)
from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Form

_LEAST_ROWS: Final = 3  # a header, a record, and one that may break off
# Settings that only the built-in tasks read.
_OF_TEXTS: Final = ("text_column", "second_text_column", "label_column", "choice_columns")
_NOT_AGREED: Final = "-"  # of SNLI and MultiNLI: those who labelled the pair did not agree

Row = tuple[str, list[Any]]  # where it is, and its cells


def rows_of_file(
    path: str, form: Form, refuse: Callable[[BadRow], None], head_bytes: int | None = None
) -> Iterator[Row]:
    """The rows of a table, the names of its columns first where the format has any.

    With `head_bytes` only that much of the file is read, without the row that may break off there.
    A row that cannot be read is given to `refuse`, and left out where that returns.
    """

    def read(head_bytes: int | None) -> list[records.Row | BadRow]:
        return list(
            table_rows(
                path,
                format_of(path, form),  # type: ignore[arg-type]
                head_bytes=head_bytes,
                decoders_of=lambda schema: class_names_of_schema(schema, path, form),
            )
        )

    rows = read(head_bytes)
    if head_bytes is not None and len(rows) < _LEAST_ROWS:  # the first record is longer than that
        rows, head_bytes = read(None), None
    for row in rows if head_bytes is None else rows[:-1]:
        if isinstance(row, BadRow):
            refuse(row)
        else:
            yield f"line {row.line:,}", row.cells


def table_records(
    rows: Iterable[Row], form: Form, settings: LabelledFile | LabelledDataset, path: str,
    tally: Tally, say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """The rows below their header as records; one without a text is left out and counted.

    `say` is called with a sentence on which columns were taken.
    """
    whole = list(rows)
    if not whole:
        raise UserError(f"{path} has no labelled rows")
    if form == "rows":
        yield from _rows(whole, settings, path, tally, say)
        return
    table = [cells for _, cells in whole]
    columns = columns_of(settings, form, table)
    say(columns.said(table))
    if columns.is_taken_for_header:
        tally.dropped["first rows taken for a header"] += 1
    found = _records(whole[columns.first_row :], form, columns, settings, tally)
    yield from _with_indices(list(found)) if form == "choices" else found


def _rows(
    rows: Sequence[Row], settings: LabelledFile | LabelledDataset, path: str, tally: Tally,
    say: Callable[[str], None],
) -> Iterator[Record]:  # fmt: skip
    """Rows with all of their columns; an empty cell of CSV is no value."""
    named = [setting for setting in _OF_TEXTS if getattr(settings, setting)]
    if named:
        raise UserError(
            f"a task of your own finds its columns by their names, found {named[0]}; leave it out, "
            f"and call the column of {path} as the task does"
        )
    names = [str(cell).strip() for cell in rows[0][1]]
    check_names(names, path)
    group = settings.group_column
    if group and group not in names:
        raise UserError(
            f"{path} has no column {group!r}, found {', '.join(names)[:200]}; set group_column to "
            "the one you mean"
        )
    say(f"columns {', '.join(names)}")
    for place, cells in rows[1:]:
        values = [None if cell == "" or is_nothing(cell) else cell for cell in cells]
        fields = dict(zip(names, restored_in(values, tally.repaired), strict=True))
        yield Record(place, text_in(fields[group], tally) if group else "", fields)


def _records(
    rows: Iterable[Row], form: Form, columns: Columns, settings: LabelledFile | LabelledDataset,
    tally: Tally,
) -> Iterator[Record]:  # fmt: skip
    for place, cells in rows:
        has_text = text_in(cells[columns.text], Tally())
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
            fields = _choices(cells, columns, tally)
        else:
            fields = _texts(cells, columns, settings, tally)
        yield Record(place, group, fields)


def _texts(
    cells: list[Any], columns: Columns, settings: LabelledFile | LabelledDataset, tally: Tally
) -> dict[str, Any]:
    assert columns.label is not None
    fields: dict[str, Any] = {"text": cell_in(cells[columns.text], tally)}
    if columns.second is not None:
        fields["second_text"] = cell_in(cells[columns.second], tally)
    label = _whole(cells[columns.label])
    fields["label"] = cell_in(label, tally)
    if fields["label"] == _NOT_AGREED and columns.is_inference:
        fields["label"] = ""
    fields["labels"] = labels_in(label, settings.label_separator, tally)
    return fields


def _pair(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    assert columns.second is not None
    places = {"second_text": columns.second, "label": columns.label, "other_text": columns.other}
    read = {
        name: None if place is None else cell_in(cells[place], tally)
        for name, place in places.items()
    }
    return {"text": cell_in(cells[columns.text], tally), **read}


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
        return squad_record(question, context, "").fields
    except NO_SQUAD:
        return {**question, "context": context, "starts": None}


def _choices(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    """The question, its choices, what they are called where the table says so, and the label.

    What a question is about follows it, so that it loses its end where both are too long. A label
    that is a number stays one: it is an index. Without a label column the first is right.
    """
    texts, names = choices_in([cells[place] for place in columns.choices], tally)
    if columns.label is None:
        texts = [texts[0], *(text for text in texts[1:] if text)]
    text = text_in(cells[columns.text], tally)
    if columns.second is not None:
        text = f"{text} {text_in(cells[columns.second], tally)}".strip()
    while texts and not texts[-1]:  # as many columns as the question of most choices needs
        texts.pop()
        names = names[: len(texts)]
    start = "" if columns.start is None else text_in(cells[columns.start], tally) + " "
    return {
        "text": text,
        "choices": [f"{start}{text}" if text else "" for text in texts],
        "names": names,
        "label": 0 if columns.label is None else _label(cells[columns.label], tally),
    }


def _with_indices(questions: Sequence[Record]) -> Sequence[Record]:
    """The same questions; labels that all are indices, written as texts, become numbers.

    So no index is taken for a choice that is a number itself.
    """
    labels = [question.fields["label"] for question in questions]
    are_indices = all(
        label.isdecimal() and int(label) < len(question.fields["choices"])
        for label, question in zip(labels, questions, strict=True)
        if isinstance(label, str) and label
    )
    if are_indices:
        for label, question in zip(labels, questions, strict=True):
            question.fields["label"] = label if label == "" else int(label)
    return questions


def choices_in(found: list[Any], tally: Tally) -> tuple[list[str], list[str]]:
    """Texts and names of the choices: of columns of texts, a list, or a table of both, which a
    cell of text writes out."""
    whole = found[0] if len(found) == 1 else found
    if isinstance(whole, str):
        whole = written_in(whole) or whole
    if isinstance(whole, dict):  # of columns, as `datasets` has it
        texts, names = _listed(whole.get("text")), _listed(whole.get("label"))
    elif isinstance(whole, list) and all(isinstance(each, dict) for each in whole):
        texts = [each.get("text") for each in whole]
        names = [each["label"] for each in whole if "label" in each]
    else:
        texts, names = _listed(whole), []
    return [text_in(text, tally) for text in texts], [text_in(name, tally) for name in names]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _whole(value: Any) -> Any:
    """A whole number as one: tables with gaps hold it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _label(value: Any, tally: Tally) -> int | str:
    value = _whole(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return text_in(value, tally)
