"""Records of labelled data, whatever their format: fields, and where they stand.

A column is called as the field that it holds, unless a setting names another one. By the family's
form a record has the fields

| form | fields |
|---|---|
| texts | `text`, `second_text` where the table has it, `label` |
| label_lists | `text`, `second_text` where the table has it, `labels` |
| pairs | `text`, `second_text`, `label` and `negative` where the table has them |
| choices | `text`, `choices`, `label` |
| words | `words`, `tags` |
| questions | `question`, `context`, `answers`; `id` and `title` where the table has them |
| rows | every column by its own name |
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipelines.errors import UserError
from pipelines.io.files import format_suffix
from pipelines.io.hugging_face import rows_of
from pipelines.io.tables import (
    Skip,
    cell_text,
    check_column,
    is_nothing,
    open_table,
    table_format,
    without_lone_surrogates,
)
from pipelines.io.text import open_text
from pipelines.stages.dataset.conll import tagged_sentences
from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Form

if TYPE_CHECKING:  # what checks a recipe reads text, mostly
    import pyarrow as pa

ClassNames = Callable[[Any], Any]  # from the number of a class, or a list of these, to names
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
_OPTIONAL: Final = {
    ("texts", "second_text"), ("label_lists", "second_text"), ("pairs", "label"),
}  # fmt: skip
_SETTINGS: Final = ("text_column", "second_text_column", "label_column", "choice_columns")
_FEATURES: Final = b"huggingface"  # under which `datasets` describes the columns of a Parquet file


class Record(NamedTuple):
    """One record: where it is ("line 7", "question 5733"), what it belongs to, its fields."""

    place: str
    group: str  # empty: the family says
    fields: dict[str, Any]


def file_format(path: str, form: Form, delimiter: str | None = None) -> str:
    """`delimited`, `jsonl`, `parquet`, `arrow`, `conll` or `squad`, by form and suffix.

    Raises UserError for a suffix that the form is not read from.
    """
    if not path:
        raise UserError("dataset.source.path is empty; name a file of labelled items")
    found = table_format(path, delimiter)
    if form == "words" and found in (None, "delimited"):
        return "conll"
    if form == "questions" and format_suffix(path) == ".json":
        return "squad"
    if found is None:
        also = " (questions: also SQuAD's .json)" if form == "questions" else ""
        raise UserError(
            f"{path} is no file of labelled items by its name; name one that ends in .csv, .tsv, "
            f".jsonl, .parquet or .arrow{also}, or one of these compressed, or set `delimiter`"
        )
    return found


def records_of_file(path: str, form: Form, source: LabelledFile, skip: Skip) -> Iterator[Record]:
    """The records of a file in their order; a malformed row goes to `skip`."""
    kind = file_format(path, form, source.delimiter)
    if kind == "squad":
        return _squad_records(path, source.encoding)
    if kind == "conll":
        return (
            Record(f"line {line:,}", "", {"words": words, "tags": tags})
            for line, words, tags in tagged_sentences(path, source, skip)
        )
    table = open_table(path, source, skip)
    names = {} if table.schema is None else _class_names_of(table.schema, path, form)
    rows = ((f"{table.unit} {row.number:,}", row.values) for row in table.rows)
    return _records(rows, table.columns, names, form, source, path)


def records_of_split(source: LabelledDataset, split: str, form: Form) -> Iterator[Record]:
    """The records of a dataset's split; raises UserError where there is no such split."""
    found = rows_of(source.dataset, source.configuration, split, source.revision)
    numbered = enumerate(found.rows, start=1)
    first = next(numbered, None)
    if first is None:
        return iter(())
    rows = ((f"row {number:,}", values) for number, values in chain([first], numbered))
    names = _class_names(found.features, form)
    return _records(rows, list(first[1]), names, form, source, source.dataset)


def _records(
    rows: Iterable[tuple[str, Mapping[str, Any]]], columns: Sequence[str],
    class_names: Mapping[str, ClassNames], form: Form, source: Source, place: str,
) -> Iterator[Record]:  # fmt: skip
    """The rows of a table as records. Values of another kind stay, for the family to refuse."""
    taken = _columns_taken(form, source, columns, place)
    for where, row in rows:
        values = {
            name: class_names[name](value) if name in class_names else value
            for name, value in row.items()
        }
        group = cell_text(values[source.group_column]) if source.group_column else ""
        if form == "rows":
            fields = {name: None if cell == "" else cell for name, cell in values.items()}
            yield Record(where, group, {k: None if is_nothing(v) else v for k, v in fields.items()})
            continue
        given = {field: values[column] for field, column in taken.items()}
        if form == "questions":
            title = cell_text(values.get("title"))
            name = cell_text(values.get("id"))
            yield Record(where, group or title, squad_fields(name, given))
            continue
        fields = {field: _cell(value) for field, value in given.items()}
        if form == "label_lists":
            fields["labels"] = _labels(given["labels"], source.label_separator)
        elif form == "choices" and source.choice_columns:
            fields["choices"] = [_cell(values[name]) for name in source.choice_columns]
        yield Record(where, group, fields)


def _columns_taken(
    form: Form, source: Source, columns: Sequence[str], place: str
) -> dict[str, str]:
    """By field, the column that holds it; raises UserError where there is none."""
    if not columns:
        raise UserError(f"{place} holds no labelled items")
    fields = _FIELDS[form]
    read = {*fields.values(), *(("choice_columns",) if form == "choices" else ())}
    idle = [name for name in _SETTINGS if getattr(source, name) and name not in read]
    if idle:
        own = " (a task of your own finds its columns by their names)" if form == "rows" else ""
        raise UserError(f"this task reads no column by {idle[0]}; leave it out{own}")
    taken = {}
    for field, setting in fields.items():
        named = getattr(source, setting)
        if named or (form, field) not in _OPTIONAL:
            check_column(named or field, columns, place, setting)
        if (named or field) in columns:
            taken[field] = named or field
    for name in source.choice_columns or (("choices",) if form == "choices" else ()):
        check_column(name, columns, place, "choice_columns")
    if form == "choices" and not source.choice_columns:
        taken["choices"] = "choices"
    if form == "pairs" and "negative" in columns:
        taken["negative"] = "negative"
    if source.group_column:
        check_column(source.group_column, columns, place, "group_column")
    return taken


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
    if isinstance(value, str) and value.strip().startswith("["):
        return value  # a list that is written out, which nothing here reads
    if isinstance(value, str):
        return [label for part in value.split(separator) if (label := part.strip())]
    if isinstance(value, list):
        return [None if is_nothing(each) else each for each in _cell(value) if each != ""]
    return None if is_nothing(value) else value


def _squad_records(path: str, encoding: str) -> Iterator[Record]:
    """The questions of a file in order; those of an article are one group.

    Raises UserError for a file of another structure.
    """
    try:
        with open_text(path, encoding) as text:
            articles = without_lone_surrogates(json.load(text))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    name = str(question.get("id", ""))
                    place = f"question {name}" if name else f"question {question['question']!r}"
                    given = {**question, "context": paragraph["context"]}
                    title = str(article.get("title") or "")
                    yield Record(place, title, squad_fields(name, given))
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} does not have SQuAD's structure of data, paragraphs, context and qas "
            f"({type(error).__name__}: {error}); fetch it again, or give JSONL with question, "
            "context and answers"
        ) from error


def squad_fields(name: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a question, from SQuAD's own; answers of another structure have no `starts`.

    Answers are a list of `{text, answer_start}`, or a table of such lists as `datasets` has it.
    """
    answers = question["answers"] if not question.get("is_impossible") else []
    fields = {"id": name, "question": question["question"], "context": question["context"]}
    try:
        if isinstance(answers, dict):
            pairs = list(zip(answers["text"], answers["answer_start"], strict=True))
        else:
            pairs = [(answer["text"], answer["answer_start"]) for answer in answers]
        texts, starts = [text for text, _ in pairs], [int(start) for _, start in pairs]
    except (ValueError, TypeError, KeyError, OverflowError):
        return {**fields, "answers": answers, "starts": None}
    return {**fields, "answers": texts, "starts": starts}


def _class_names_of(schema: "pa.Schema", path: str, form: Form) -> dict[str, ClassNames]:
    """As `_class_names`, where `datasets` described the columns of a Parquet or Arrow file."""
    if _FEATURES not in (schema.metadata or {}):
        return {}
    from datasets import Features

    try:
        return _class_names(Features.from_arrow_schema(schema), form)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"`datasets` cannot read the names of the classes of {path} ({error}); update it, or "
            "write the names into the label column"
        ) from error


def _class_names(features: Mapping[str, Any], form: Form) -> dict[str, ClassNames]:
    """For columns of classes, and of lists of classes, what turns a number into its name.

    A number without a name, such as -1 in published test splits, is none. The number of a choice
    stays one: it is the choice's index, whatever it is called.
    """
    if form == "choices" or not features:
        return {}
    from datasets import ClassLabel

    found: dict[str, ClassNames] = {}
    for column, feature in features.items():
        inner = getattr(feature, "feature", None)
        if isinstance(feature, ClassLabel):
            found[column] = partial(_class_name, feature.names)
        elif isinstance(inner, ClassLabel):
            found[column] = partial(_names_of_list, inner.names)
    return found


def _class_name(names: Sequence[str], value: int | None) -> str | None:
    return names[value] if value is not None and 0 <= value < len(names) else None


def _names_of_list(names: Sequence[str], values: list[int] | None) -> list[str | None] | None:
    return None if values is None else [_class_name(names, value) for value in values]
