"""Asking a model: its questions from a table or from texts, and its answers."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from bert_core.inference import Candidate, fill_mask
from bert_core.inference.tables import (
    Question,
    answer_table,
    first_gap,
    is_blank,
    question_of,
    rows_in,
)
from bert_core.model.catalogue import Model, PretrainingModel, described
from bert_core.model.rows import RowModel
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.predict.tables import FileTable, Table, format_of
from pipelines.registry.package import OpenedModel

_ROWS_AT_ONCE: Final = 2048
_WORDS: Final = "words"  # split already, in place of texts


class Asked(NamedTuple):
    """The columns that a model is asked about, and the table beside whose columns it answers."""

    columns: Table
    own: Table
    taken: dict[str, str]  # by the question's name of a column, that of the file


def question_for(model: Model, called: str) -> Question:
    """What is asked of the model `called` so; raises UserError where it answers no table."""
    try:
        return question_of(model)
    except ValueError as error:
        raise UserError(f"{called}: {error}; see `bertsmith models`") from error


def asked_of(table: FileTable, renamed: Mapping[str, str], question: Question) -> Asked:
    """The columns of a file that the question has, as many of them as there are.

    `renamed` says under which name the file has a column; raises UserError where it has not.
    """
    wanted = (*question.columns, *question.optional)
    found, path = table.columns, table.path
    names = {name: renamed.get(name, name) for name in wanted}
    if _WORDS in names and "text" in renamed:
        del names[_WORDS]  # one column was named: that one is asked
    taken = {name: theirs for name, theirs in names.items() if theirs in found}
    missing = next((names[name] for name in renamed if name in names and name not in taken), None)
    if missing is not None:
        raise UserError(
            f"{path} has no column {missing!r}, found {', '.join(found)[:200]}; name another one"
        )
    asked = {
        name: [_decoded(cell, path, theirs) for cell in found[theirs]]
        for name, theirs in taken.items()
    }
    for name, value in question.example.items():
        if name in asked and isinstance(value, list):
            asked[name] = [_list(cell, path, name) for cell in asked[name]]
    return Asked(_with_words(asked) if _WORDS in wanted else asked, found, taken)


def texts_of(question: Question) -> list[str]:
    """The question's names of the first text and of what goes with it, in their order."""
    return [*question.columns, *(name for name in question.optional if name != question.in_place)]


def asked_of_file(
    table: FileTable,
    question: Question,
    text_column: str | None,
    second_text_column: str | None,
) -> Asked:
    """Likewise, with the columns that a person names for the first and the second text.

    Raises UserError where there is nothing to ask.
    """
    names = texts_of(question)
    given = (text_column, second_text_column)
    renamed = {name: theirs for name, theirs in zip(names, given, strict=False) if theirs}
    if second_text_column and len(names) < 2:
        raise UserError("this model reads one text; leave out --second-text-column")
    asked = asked_of(table, renamed, question)
    if not any(asked.columns.values()):
        raise UserError(
            f"{table.path} has no column {' or '.join((*question.columns, *question.optional))} "
            f"with something in it, found {', '.join(table.columns)[:200] or 'none'}; name its "
            "columns"
        )
    return asked if format_of(table.path) != "texts" else asked._replace(taken={})


def asked_of_texts(question: Question, texts: Sequence[str]) -> Asked:
    """Arguments as rows: a text each, or one row of a text and what belongs to it."""
    return _asked_of_rows(question, [[t] for t in texts] if len(question.columns) == 1 else [texts])


def asked_of_lines(question: Question, lines: Sequence[str]) -> Asked:
    """Lines as rows: a text each, or a text and what belongs to it, separated by tabs."""
    most_tabs = -1 if _ends_with_list(question) else len(question.columns) - 1
    return _asked_of_rows(question, [line.split("\t", most_tabs) for line in lines])


def answer_all(opened: OpenedModel, table: Table) -> Table:
    """What a model answers to every row, as columns.

    Raises UserError for a table without the columns that are asked about, and for rows that cannot
    be answered.
    """
    total = len(next(iter(table.values()), []))
    if not total:
        raise UserError("there is no row to answer")
    check_rows(opened[0], table, range(total), "what is asked")
    answered: Table = {}
    for first in range(0, total, _ROWS_AT_ONCE):
        rows = {name: values[first : first + _ROWS_AT_ONCE] for name, values in table.items()}
        for name, values in answers_to(*opened, rows).items():
            answered.setdefault(name, []).extend(values)
    return answered


def check_rows(model: Model, table: Table, numbers: Sequence[int], place: str) -> None:
    """Raise UserError, with its number of `numbers`, for a row that the model cannot read."""
    gap = first_gap(model, table)
    if gap is not None:
        raise UserError(
            f"row {numbers[gap.row]} of {place}, counted from 0, has no {gap.column}; fill it, or "
            "leave the row out"
        )
    question = question_of(model)
    for name, cells in table.items():
        is_list = holds_lists(question, name)
        for number, cell in zip(numbers, cells, strict=True):
            if not is_blank(cell) and (is_list != isinstance(cell, list) or isinstance(cell, dict)):
                raise UserError(
                    f"row {number} of {place}, counted from 0: {name} must be "
                    f"{'a list of texts' if is_list else 'a text'}, found {str(cell)[:40]!r}; "
                    "correct it"
                )
    if isinstance(model, RowModel) and not question.missing(table):
        for number, row in zip(numbers, rows_in(model, table), strict=True):
            if not list(model.texts(row)):
                raise UserError(
                    f"row {number} of {place}, counted from 0, has nothing that "
                    f"{type(model).__name__} reads; leave the row out"
                )


def holds_lists(question: Question, name: str) -> bool:
    """Whether the values of a column that is asked about are lists of texts."""
    return name == question.in_place or isinstance(question.example.get(name), list)


def answers_to(
    model: Model, tokenizer: WordPieceTokenizer, rows: Mapping[str, list[object]]
) -> Table:
    """What a model that was opened answers to rows; raises UserError where it cannot."""
    asked = question_of(model)
    known = {name: rows[name] for name in (*asked.columns, *asked.optional) if name in rows}
    try:
        return answer_table(model, tokenizer, known)
    except ValueError as error:  # an empty context, no choices, a column that is missing
        raise UserError(str(error)) from error


def fill(opened: OpenedModel, called: str, text: str, top_k: int) -> list[list[Candidate]]:
    """For each [MASK] of `text`, the `top_k` most probable tokens of the encoder `called`.

    Raises UserError for another kind of model, for a text longer than the model reads, and for a
    `top_k` beyond its vocabulary.
    """
    model, tokenizer = opened
    if not isinstance(model, PretrainingModel):
        raise UserError(
            f"{called} is {described(model.head_name)}, which fills no gaps; name "
            f"{described(PretrainingModel.head_name)} (see `bertsmith models`)"
        )
    if top_k > tokenizer.vocab_size:
        raise UserError(
            f"{called} has {tokenizer.vocab_size:,} tokens to choose from, and you asked for the "
            f"{top_k:,} likeliest; ask for fewer"
        )
    try:
        return fill_mask(model, tokenizer, text, top_k=top_k)
    except ValueError as error:  # a text longer than the model reads
        raise UserError(str(error)) from error


def _ends_with_list(question: Question) -> bool:
    """Whether several texts go with the first one: choices."""
    return isinstance(question.example.get(question.columns[-1]), list)


def _asked_of_rows(question: Question, rows: Sequence[Sequence[str]]) -> Asked:
    """Each row has a text for each column; where the last one holds lists, two or more for it."""
    *firsts, last = question.columns
    is_list = _ends_with_list(question)
    for row in rows:
        if len(row) < len(firsts) + 2 if is_list else len(row) != len(firsts) + 1:
            wanted = [
                *(f"a {name}" for name in firsts),
                f"{'two or more' if is_list else 'a'} {last}",
            ]
            raise UserError(
                f"this model needs {' and '.join(wanted)}, found {', '.join(row)!r:.80}; give them "
                "as arguments, in a line with tabs between them, or in a table with --file"
            )
    columns: Table = {name: [row[place] for row in rows] for place, name in enumerate(firsts)}
    rest = [list(row[len(firsts) :]) for row in rows]
    columns[last] = [texts if is_list else texts[0] for texts in rest]
    return Asked(columns, columns, {})


def _with_words(asked: Table) -> Table:
    """Words that are split already, in a column of their own; the other rows keep their text."""
    texts, words = asked.pop("text", []), asked.pop(_WORDS, [])
    texts, words = texts or [None] * len(words), words or [None] * len(texts)
    split = [
        text if isinstance(text, list) else word for text, word in zip(texts, words, strict=True)
    ]
    alone = [None if value is not None else text for value, text in zip(split, texts, strict=True)]
    if any(value is not None for value in split):
        asked = {_WORDS: split, **asked}
    if split.count(None):
        asked = {"text": alone, **asked}
    return asked


def _decoded(cell: Any, path: str, column: str) -> Any:
    """A cell of bytes as its text; raises UserError where it is not UTF-8."""
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError as error:
        raise UserError(
            f"the bytes {cell!r:.40} in the column {column!r} of {path} are not UTF-8; write them "
            "as text"
        ) from error


def _list(cell: Any, path: str, name: str) -> list[Any] | None:
    """A cell as a list of texts, which CSV writes as JSON; UserError where it is none."""
    value = cell
    if isinstance(cell, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(cell)
    if value is None or (
        isinstance(value, list) and not any(isinstance(each, list | dict) for each in value)
    ):
        return value
    raise UserError(
        f'{path}: {name} must hold lists of texts, in CSV as JSON such as ["a", "b"], found '
        f"{cell!r:.60}; correct it"
    )
