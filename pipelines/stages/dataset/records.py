"""Records of labelled data, from every format that a form of task is read from.

A column is called as the field that it holds, unless a setting names another one. By the family's
form a record has the fields

| form | fields |
|---|---|
| texts | `text`, `second_text` where the table has it, `label` |
| label_lists | `text`, `second_text` where the table has it, `labels` |
| pairs | `text`, `second_text`, `label` and `negative` where the table has them |
| choices | `text`, `choices`, `label` |
| words | `words`, `tags`, or a text and its spans; `offsets` says what these count |
| questions | `question`, `context`, `answers`; `id` and `title` where the table has them |
| rows | every column by its own name |
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from pipelines.errors import UserError
from pipelines.io.conll import tagged_sentences
from pipelines.io.exports import label_studio_tasks, squad_questions
from pipelines.io.files import format_suffix
from pipelines.io.hugging_face import rows_of
from pipelines.io.tables import (
    cell_text,
    check_column,
    check_columns,
    is_nothing,
    open_table,
    table_format,
)
from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Form

Source = LabelledFile | LabelledDataset
# By form: its fields, and the setting that names the column of each.
_TEXT: Final = {"text": "text_column", "second_text": "second_text_column"}
_FIELDS: Final[dict[Form, dict[str, str]]] = {
    "texts": {**_TEXT, "label": "label_column"},
    "label_lists": {**_TEXT, "labels": "label_column"},
    "pairs": {**_TEXT, "label": "label_column"},
    "choices": {"text": "text_column", "label": "label_column"},
    "words": {"words": "text_column", "tags": "label_column"},
    "questions": {
        "question": "text_column", "context": "second_text_column", "answers": "label_column"
    },
    "rows": {},
}  # fmt: skip
_SPANS: Final = ("spans", "entities", "label")  # as Prodigy, doccano and others call them
_OPTIONAL: Final = {
    ("texts", "second_text"), ("label_lists", "second_text"), ("pairs", "label"),
}  # fmt: skip
# Brackets or quotes around labels, zeros and ones for each, and other separators.
_OTHER_LISTS: Final = re.compile(r"""\s*(\[.*\]|\{.*\}|\(.*\)|["'“].*|[01](\s+[01])+)\s*""")
_OTHER_SEPARATORS: Final = re.compile("[;|、，،]")
_FEATURES: Final = b"huggingface"  # under which `datasets` describes the columns of a Parquet file


class Record(NamedTuple):
    """One record: where it is ("line 7", "question 5733"), what it belongs to, its fields."""

    place: str
    group: str  # empty: the family says
    fields: dict[str, Any]


def file_format(path: str, form: Form, delimiter: str | None = None) -> str:
    """`delimited`, `jsonl`, `parquet`, `conll` or `squad`, by form and suffix.

    Raises UserError for a suffix that the form is not read from.
    """
    if not path:
        raise UserError("dataset.source.path is empty; name a file of labelled items")
    table = table_format(path, delimiter)
    if format_suffix(path) == ".json" and form in ("words", "questions"):
        return "label_studio" if form == "words" else "squad"
    if form == "words" and table in (None, "delimited"):
        return "conll"
    if table is None:
        raise UserError(
            f"{path} is no file of labelled items by its name; name one that ends in .csv, .tsv, "
            ".jsonl or .parquet (SQuAD's questions: .json), or one of these compressed, or "
            "set `delimiter`"
        )
    return table


def records_of_file(path: str, form: Form, source: LabelledFile) -> Iterator[Record]:
    """The records of a file in their order; raises UserError where they cannot be read."""
    kind = file_format(path, form, source.delimiter)
    _check_settings(form, source)
    if kind in ("squad", "conll", "label_studio") and source.group_column:
        raise UserError(f"{path} has no columns; leave out group_column (evaluate: --slice)")
    if kind == "squad":
        if source.text_column or source.second_text_column or source.label_column:
            raise UserError(
                f"{path} has its fields where SQuAD has them; leave out text_column, "
                "second_text_column and label_column, or write JSONL with columns"
            )
        for title, question in squad_questions(path, source.encoding):
            name = str(question.get("id", ""))
            place = f"question {name or repr(question['question'])}"
            yield Record(place, title, _squad_fields(name, question))
        return
    if kind == "label_studio":
        tasks = label_studio_tasks(path, source.encoding, source.text_column, source.label_column)
        for number, (text, spans) in enumerate(tasks, start=1):
            fields = {"words": text, "tags": spans, "offsets": source.offsets}
            yield Record(f"task {number}", "", fields)
        return
    if kind == "conll":
        if source.text_column or source.label_column:
            raise UserError(
                f"{path} has words in its first column and tags in its last; leave out text_column "
                "and label_column, or write a file of two columns"
            )
        for line, words, tags in tagged_sentences(path, source.encoding):
            yield Record(f"line {line}", "", {"words": words, "tags": tags})
        return
    table = open_table(path, source)
    features: Mapping[str, Any] = {}
    if table.schema is not None and _FEATURES in (table.schema.metadata or {}):
        from datasets import Features

        features = Features.from_arrow_schema(table.schema)
    rows = ((f"{table.unit} {row.number}", row.values) for row in table.rows)
    yield from _records(rows, table.columns, features, form, source, path)


def records_of_split(source: LabelledDataset, split: str, form: Form) -> Iterator[Record]:
    """The records of a dataset's split in their order."""
    _check_settings(form, source)
    rows, features = rows_of(source.dataset, source.configuration, split, source.revision)
    first = next(rows, None)
    if first is None:
        return iter(())
    numbered = enumerate(chain([first], rows), start=1)
    placed = ((f"row {number}", values) for number, values in numbered)
    return _records(placed, list(first), features, form, source, source.dataset)


def _records(
    rows: Iterable[tuple[str, Mapping[str, Any]]], columns: Sequence[str],
    features: Mapping[str, Any], form: Form, source: Source, place: str,
) -> Iterator[Record]:  # fmt: skip
    """The rows of a table as records. Values of another kind stay, for the family to refuse."""
    column_of = _columns_of_fields(form, source, columns, place)
    names = _class_names(features, form)
    for where, row in rows:
        values = {**row, **{name: _named(row[name], names[name]) for name in names}}
        group = _name(values[source.group_column], where, place) if source.group_column else ""
        if form == "rows":
            cells = {
                name: None if value == "" or is_nothing(value) else value
                for name, value in values.items()
            }
            yield Record(where, group, cells)
            continue
        raw = {field: values[column] for field, column in column_of.items()}
        is_of_prodigy = form == "words" or "_task_hash" in values
        if is_of_prodigy and values.get("answer") in ("reject", "ignore"):
            raise UserError(f"{where} of {place} was not accepted in Prodigy; leave it out")
        if form == "questions":
            title, name = (_name(values.get(each), where, place) for each in ("title", "id"))
            if _is_impossible(values.get("is_impossible"), raw["answers"], where, place):
                raw["answers"] = []  # those of the row are only plausible
            yield Record(where, group if source.group_column else title, _squad_fields(name, raw))
            continue
        fields = {field: _cell(value) for field, value in raw.items()}
        if form == "words":
            fields["offsets"] = source.offsets
            if isinstance(raw["words"], str):  # whose spans count white space, too
                fields["words"] = raw["words"]
            elif isinstance(raw["words"], bytes) and isinstance(fields["words"], str):
                fields["words"] = raw["words"].decode()
        if form == "label_lists":
            fields["labels"] = _labels(raw["labels"], source.label_separator)
        elif form == "choices" and source.choice_columns:
            fields["choices"] = [_cell(values[name]) for name in source.choice_columns]
        yield Record(where, group, fields)


def _name(value: Any, where: str, place: str) -> str:
    """What a row belongs to, or is called; raises UserError where that is no text."""
    try:
        return cell_text(value)
    except UnicodeDecodeError as error:
        raise UserError(f"{where} of {place} has bytes that are no UTF-8; write a text") from error


def _is_impossible(value: Any, answers: Any, where: str, place: str) -> bool:
    """Whether a question has no answer, as `is_impossible` says; where it is left out, none."""
    if is_nothing(value):
        return False
    has_answers = bool(answers.get("text")) if isinstance(answers, dict) else bool(answers)
    if not isinstance(value, bool) or not (value or has_answers):
        raise UserError(
            f"{where} of {place} has is_impossible {value!r} and "
            f"{'answers' if has_answers else 'no answer'}; write true or false, and false only "
            "where there is an answer"
        )
    return value


def _check_settings(form: Form, source: Source) -> None:
    """Raise UserError where a setting names a column that the form has not."""
    read = {*_FIELDS[form].values(), *(("choice_columns",) if form == "choices" else ())}
    for name in ("text_column", "second_text_column", "label_column", "choice_columns"):
        if getattr(source, name) and name not in read:
            raise UserError(f"this task reads no column by {name}; leave it out")


def _columns_of_fields(
    form: Form, source: Source, columns: Sequence[str], place: str
) -> dict[str, str]:
    """By field, the column that holds it; raises UserError where there is none."""
    settings = _FIELDS[form]
    if not columns:
        raise UserError(f"{place} holds no labelled items")
    usual = {field: field for field in settings}
    if form == "words" and "words" not in columns and "text" in columns:
        usual = {"words": "text", "tags": _column_of_spans(source, columns, place)}
    column_of, name_of = {}, {}
    for field, setting in settings.items():
        name = getattr(source, setting) or usual[field]
        if getattr(source, setting) or (form, field) not in _OPTIONAL:
            name_of[f"{setting} (--{setting.replace('_', '-')})"] = name
        if name in columns:
            column_of[field] = name
    check_columns(name_of, columns, place)
    twice = [name for name, count in Counter(column_of.values()).items() if count > 1]
    if twice:
        raise UserError(f"{', '.join(settings.values())} name the column {twice[0]!r} twice")
    if len({*source.choice_columns}) < len(source.choice_columns):
        raise UserError("choice_columns names a column twice; name each once")
    for name in source.choice_columns or (("choices",) if form == "choices" else ()):
        check_column(name, columns, place, "choice_columns")
    if form == "choices" and not source.choice_columns:
        column_of["choices"] = "choices"
    if form == "pairs" and "negative" in columns:
        column_of["negative"] = "negative"
    if source.group_column:
        check_column(source.group_column, columns, place, "group_column (evaluate: --slice)")
    return column_of


def _column_of_spans(source: Source, columns: Sequence[str], place: str) -> str:
    """The column with the spans of texts; raises UserError where several could be."""
    present = [name for name in _SPANS if name in columns]
    if len(present) > 1 and not source.label_column:
        raise UserError(
            f"{place} has {' and '.join(present)}; set label_column to the one with the spans"
        )
    return present[0] if present else _SPANS[0]


def _cell(value: Any) -> Any:
    """A value as text, in a list too; what has none stays as it is, for the family to refuse."""
    if isinstance(value, list):
        return [_cell(each) if isinstance(each, str | bytes) else each for each in value]
    if isinstance(value, dict):
        return value
    try:
        return cell_text(value)
    except UnicodeDecodeError:
        return value


def _labels(value: Any, separator: str) -> Any:
    """Any number of labels, in a list or a text; null is none at all, an empty text no label."""
    if isinstance(value, str):
        is_other = separator not in value and _OTHER_SEPARATORS.search(value)
        if is_other or _OTHER_LISTS.fullmatch(value):
            return value  # a list that nothing here reads
        return [label for part in value.split(separator) if (label := part.strip())]
    if isinstance(value, list):
        return [None if is_nothing(each) else each for each in _cell(value) if each != ""]
    return None if is_nothing(value) else value


def _class_names(features: Mapping[str, Any], form: Form) -> dict[str, Sequence[str]]:
    """By column of classes, or of lists of classes, their names.

    The number of a choice stays one: it is the choice's index, whatever it is called.
    """
    if form == "choices" or not features:
        return {}
    from datasets import ClassLabel

    inner = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
    return {name: each.names for name, each in inner.items() if isinstance(each, ClassLabel)}


def _named(value: Any, names: Sequence[str]) -> Any:
    """Numbers of classes by their names; one without, such as -1 in published tests, is none."""
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    return names[value] if value is not None and 0 <= value < len(names) else None


def _squad_fields(name: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a question, from SQuAD's own; answers of another structure have no `starts`.

    Answers are a list of `{text, answer_start}`, or a table of such lists as `datasets` has it.
    """
    answers = question["answers"]
    fields = {"id": name, "question": question["question"], "context": question["context"]}
    try:
        if isinstance(answers, dict):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
        texts, starts = [text for text, _ in pairs], [int(start) for _, start in pairs]
        if starts != [float(start) for _, start in pairs]:
            raise ValueError("a place between two characters")
    except (ValueError, TypeError, KeyError, OverflowError):
        return {**fields, "answers": answers, "starts": None}
    return {**fields, "answers": texts, "starts": starts}
