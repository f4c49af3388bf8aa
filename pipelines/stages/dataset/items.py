"""Labelled items of a family: read from any format, checked one by one, and divided.

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

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bert_core.randomness import random_bits, uniform
from pipelines.errors import UserError
from pipelines.io.files import format_suffix, open_binary, reached, require_answer
from pipelines.io.hugging_face import commit_of, name_of, rows_of
from pipelines.io.tables import (
    cell_text,
    check_column,
    delimiter_of,
    is_nothing,
    open_table,
    squad_questions,
    table_format,
    tagged_sentences,
)
from pipelines.stages.dataset.settings import (
    CorpusSourceLabels,
    DatasetSettings,
    LabelledDataset,
    LabelledFile,
)
from pipelines.tasks import BadItemError, Form, Item, Items, TaskFamily, family

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
_BLOCK_BYTES: Final = 2**20
_ITEMS_INSPECTED: Final = 5000  # of a large file or split, before a run begins


class Record(NamedTuple):
    """One record: where it is ("line 7", "question 5733"), what it belongs to, its fields."""

    place: str
    group: str  # empty: the family says
    fields: dict[str, Any]


class Grouped(NamedTuple):
    """An item, and what it belongs to."""

    group: str
    item: Item


class Parts(NamedTuple):
    """Labelled items, divided."""

    train: list[Item]
    heldout: list[Item]


def read_labelled(
    part: str, family: TaskFamily, source: Source, *, limit: int | None = None
) -> list[Grouped]:
    """The items of a part of `source` in their order.

    `part` is the path of a file, or the name of a dataset's split, of which at most `limit` records
    are read. Raises UserError, naming the place, for a record that cannot be read or learned from.
    """
    if isinstance(source, LabelledDataset):
        path = f"{source.dataset}, split {part}"
        records = _records_of_split(source, part, family.form)
    else:
        path = part
        records = _records_of_file(part, family.form, source)
    items: list[Grouped] = []
    for record in islice(records, limit):
        try:
            if record.fields.get("text") == "" and family.form != "rows":
                raise BadItemError("have a text", "none")
            item = family.item(record.fields)
        except BadItemError as error:
            raise UserError(
                f"every item of {path} must {error.must}, found {error.found} in {record.place}; "
                "correct or remove it"
            ) from error
        items.append(Grouped(record.group or family.group(item), item))
    if not items:
        raise UserError(f"{path} holds no labelled items")
    return items


def file_format(path: str, form: Form, delimiter: str | None = None) -> str:
    """`delimited`, `jsonl`, `parquet`, `conll` or `squad`, by form and suffix.

    Raises UserError for a suffix that the form is not read from.
    """
    if not path:
        raise UserError("dataset.source.path is empty; name a file of labelled items")
    table = table_format(path, delimiter)
    if form == "words" and table in (None, "delimited"):
        return "conll"
    if form == "questions" and format_suffix(path) == ".json":
        return "squad"
    if table is None:
        raise UserError(
            f"{path} is no file of labelled items by its name; name one that ends in .csv, .tsv, "
            ".jsonl or .parquet (SQuAD's questions: .json), or one of these compressed, or "
            "set `delimiter`"
        )
    return table


def _records_of_file(path: str, form: Form, source: LabelledFile) -> Iterator[Record]:
    kind = file_format(path, form, source.delimiter)
    if kind == "squad":
        return _squad_records(path, source.encoding)
    if kind == "conll":
        return (
            Record(f"line {line:,}", "", {"words": words, "tags": tags})
            for line, words, tags in tagged_sentences(
                path, source.encoding, source.text_column, source.label_column
            )
        )
    table = open_table(path, source)
    features: Mapping[str, Any] = {}
    if table.schema is not None and _FEATURES in (table.schema.metadata or {}):
        from datasets import Features

        features = Features.from_arrow_schema(table.schema)
    rows = ((f"{table.unit} {row.number:,}", row.values) for row in table.rows)
    return _records(rows, table.columns, features, form, source, path)


def _records_of_split(source: LabelledDataset, split: str, form: Form) -> Iterator[Record]:
    rows, features = rows_of(source.dataset, source.configuration, split, source.revision)
    first = next(rows, None)
    if first is None:
        return iter(())
    numbered = enumerate(chain([first], rows), start=1)
    placed = ((f"row {number:,}", values) for number, values in numbered)
    return _records(placed, list(first), features, form, source, source.dataset)


def _records(
    rows: Iterable[tuple[str, Mapping[str, Any]]], columns: Sequence[str],
    features: Mapping[str, Any], form: Form, source: Source, place: str,
) -> Iterator[Record]:  # fmt: skip
    """The rows of a table as records. Values of another kind stay, for the family to refuse."""
    column_of = _columns_of_fields(form, source, columns, place)
    names = _class_names(features, form)
    for where, row in rows:
        values = {
            name: names[name](value) if name in names else value for name, value in row.items()
        }
        group = cell_text(values[source.group_column]) if source.group_column else ""
        if form == "rows":
            cells = {
                name: None if value == "" or is_nothing(value) else value
                for name, value in values.items()
            }
            yield Record(where, group, cells)
            continue
        raw = {field: values[column] for field, column in column_of.items()}
        if form == "questions":
            title, name = cell_text(values.get("title")), cell_text(values.get("id"))
            yield Record(where, group or title, _squad_fields(name, raw))
            continue
        fields = {field: _cell(value) for field, value in raw.items()}
        if form == "label_lists":
            fields["labels"] = _labels(raw["labels"], source.label_separator)
        elif form == "choices" and source.choice_columns:
            fields["choices"] = [_cell(values[name]) for name in source.choice_columns]
        yield Record(where, group, fields)


def _columns_of_fields(
    form: Form, source: Source, columns: Sequence[str], place: str
) -> dict[str, str]:
    """By field, the column that holds it; raises UserError where there is none."""
    settings = _FIELDS[form]
    if not columns:
        raise UserError(f"{place} holds no labelled items")
    read = {*settings.values(), *(("choice_columns",) if form == "choices" else ())}
    idle = [name for name in _SETTINGS if getattr(source, name) and name not in read]
    if idle:
        raise UserError(f"this task reads no column by {idle[0]}; leave it out")
    column_of = {}
    for field, setting in settings.items():
        name = getattr(source, setting)
        if name or (form, field) not in _OPTIONAL:
            check_column(name or field, columns, place, setting)
        if (name or field) in columns:
            column_of[field] = name or field
    for name in source.choice_columns or (("choices",) if form == "choices" else ()):
        check_column(name, columns, place, "choice_columns")
    if form == "choices" and not source.choice_columns:
        column_of["choices"] = "choices"
    if form == "pairs" and "negative" in columns:
        column_of["negative"] = "negative"
    if source.group_column:
        check_column(source.group_column, columns, place, "group_column")
    return column_of


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


def _class_names(features: Mapping[str, Any], form: Form) -> dict[str, ClassNames]:
    """For columns of classes, and of lists of classes, what turns a number into its name.

    A number without a name, such as -1 in published test splits, is none. The number of a choice
    stays one: it is the choice's index, whatever it is called.
    """
    if form == "choices" or not features:
        return {}
    from datasets import ClassLabel

    names: dict[str, ClassNames] = {}
    for column, feature in features.items():
        inner = getattr(feature, "feature", None)
        if isinstance(feature, ClassLabel):
            names[column] = partial(_class_name, feature.names)
        elif isinstance(inner, ClassLabel):
            names[column] = partial(_names_of_list, inner.names)
    return names


def _class_name(names: Sequence[str], value: int | None) -> str | None:
    return names[value] if value is not None and 0 <= value < len(names) else None


def _names_of_list(names: Sequence[str], values: list[int] | None) -> list[str | None] | None:
    return None if values is None else [_class_name(names, value) for value in values]


def _squad_records(path: str, encoding: str) -> Iterator[Record]:
    """The questions of a file in order; those of an article are one group."""
    for title, question in squad_questions(path, encoding):
        name = str(question.get("id", ""))
        place = f"question {name or repr(question['question'])}"
        yield Record(place, title, _squad_fields(name, question))


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
    except (ValueError, TypeError, KeyError, OverflowError):
        return {**fields, "answers": answers, "starts": None}
    return {**fields, "answers": texts, "starts": starts}


def read_parts(source: Source, family: TaskFamily, *, limit: int | None = None) -> Parts:
    """The items of a source as it divides them, or with a share of them held out."""
    train, heldout = source.parts
    items = read_labelled(train, family, source, limit=limit)
    if not heldout:
        return divided(items, family, source.heldout_fraction, source.seed)
    others = read_labelled(heldout, family, source, limit=limit)
    return Parts([each.item for each in items], [each.item for each in others])


def with_labels(parts: Parts, family: TaskFamily) -> tuple[Items, Items]:
    """Both parts with their labels; raises UserError where a model could not be trained on them."""
    if not parts.train:
        raise UserError(
            f"all {len(parts.heldout)} items belong together and are held out; give others, or set "
            "another seed of the split"
        )
    labels = family.labels(parts.train, parts.heldout)
    if not parts.heldout:
        raise UserError(
            f"none of the {len(parts.train)} items is held out to evaluate on; raise "
            "heldout_fraction or give more items"
        )
    return Items(parts.train, labels), Items(parts.heldout, labels)


def divided(
    items: Sequence[Grouped], family: TaskFamily, heldout_fraction: float, seed: int
) -> Parts:
    """Hold items out by the group they belong to, so that none is on both sides.

    A class that would be held out alone is trained on: its first group moves.
    """
    groups = _joined_groups(items)
    digests = b"".join(hashlib.sha256(group.encode()).digest()[:8] for group in groups)
    draws = uniform(random_bits(seed, "split", np.frombuffer(digests, dtype="<u8")))
    is_heldout: list[bool] = (draws < heldout_fraction).tolist()
    known = family.classes_of([
        each.item for each, held_out in zip(items, is_heldout, strict=True) if not held_out
    ])  # fmt: skip
    for place, each in enumerate(items):
        if is_heldout[place] and family.classes_of([each.item]) - known:
            for other, group in enumerate(groups):
                if group == groups[place]:
                    is_heldout[other] = False
                    known |= family.classes_of([items[other].item])
    parts = Parts([], [])
    for each, held_out in zip(items, is_heldout, strict=True):
        parts[int(held_out)].append(each.item)
    return parts


def num_in_train(parts: Parts, family: TaskFamily) -> int:
    """How many held-out items belong to what is trained on, as `divided` groups them."""
    every = [Grouped(family.group(item), item) for part in parts for item in part]
    groups = _joined_groups(every)
    trained = set(groups[: len(parts.train)])
    return sum(group in trained for group in groups[len(parts.train) :])


def _joined_groups(items: Sequence[Grouped]) -> list[str]:
    """What each item belongs to: texts that differ in case and blanks alone are one.

    So are the groups of pairs of the same two texts, in either order.
    """
    joined: dict[str, str] = {}  # a group, and an earlier one that it belongs to

    def first_of(group: str) -> str:
        while group in joined:
            group = joined[group]
        return group

    groups = [_folded(each.group) for each in items]
    of_pair: dict[tuple[str, ...], str] = {}
    for each, group in zip(items, groups, strict=True):
        if each.item.get("second_text"):
            pair = tuple(sorted((_folded(each.item["text"]), _folded(each.item["second_text"]))))
            ours, theirs = first_of(group), first_of(of_pair.setdefault(pair, group))
            if ours != theirs:
                joined[ours] = theirs
    return [first_of(group) for group in groups]


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def resolved(source: LabelledDataset) -> LabelledDataset:
    """The same dataset at one commit; raises UserError where it is not found."""
    if source.heldout_split and (Path(source.dataset) / "state.json").is_file():
        raise UserError(
            f"{source.dataset} holds a single split; leave out dataset.source.heldout_split: "
            "a share of the items is held out"
        )
    return source.model_copy(update={"revision": commit_of(source.dataset, source.revision)})


def inputs_of(source: Source, family: TaskFamily) -> dict[str, str]:
    """What decides the records of a source: its files' bytes and how they are parsed, or a commit.

    Raises UserError where a file is not there, not readable or of an unknown format.
    """
    if isinstance(source, LabelledDataset):
        return {"dataset": name_of(source.dataset, source.revision)[0]}
    inputs = _name_of_file(source.path, family, source)
    if source.heldout_path:
        heldout = _name_of_file(source.heldout_path, family, source)
        inputs |= {f"heldout_{name}": value for name, value in heldout.items()}
    return inputs


def _name_of_file(path: str, family: TaskFamily, source: LabelledFile) -> dict[str, str]:
    parsing = file_format(path, family.form, source.delimiter)
    if parsing == "delimited":
        parsing = f"delimiter {delimiter_of(path, source)!r}"
    digest = hashlib.sha256()
    with open_binary(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return {"file": digest.hexdigest(), "format": parsing}


def check_inputs(
    settings: DatasetSettings, corpus_labels: frozenset[str] = frozenset()
) -> TaskFamily:
    """The family; UserError where the labelled items cannot be read, or give nothing to learn.

    Of many items the first ones are looked at. `corpus_labels` are those that the corpus's
    documents will get, where that is known.
    """
    source = settings.source
    if isinstance(source, CorpusSourceLabels) and len(corpus_labels) == 1:
        raise UserError(
            "a classifier of the corpus's sources needs at least two of them to tell apart, found "
            f"{min(corpus_labels)!r} alone; give labelled texts (--labels), or set "
            "dataset.source to {kind: none}"
        )
    task = family(settings.family)
    if isinstance(source, LabelledDataset):
        _check_items(resolved(source), task)
    elif isinstance(source, LabelledFile):
        paths = [source.path, *filter(None, [source.heldout_path])]
        for path in paths:
            file_format(path, task.form, source.delimiter)
            require_answer(path)
        with reached(*paths):
            _check_items(source, task)
    return task


def _check_items(source: Source, task: TaskFamily) -> None:
    """Look at the first items; where these are all, check that a model can learn from them."""
    parts = read_parts(source, task, limit=_ITEMS_INSPECTED)
    if len(parts.train) + len(parts.heldout) < _ITEMS_INSPECTED:
        with_labels(parts, task)
