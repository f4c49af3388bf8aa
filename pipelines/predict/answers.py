"""Asking a model: its questions from a table or from texts, and its answers."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bert_core.inference.pretrained import Candidate, fill_mask
from bert_core.inference.tables import Question, answer_table, first_gap, is_blank, question_of
from bert_core.model.catalogue import Model, PretrainingModel, described
from bert_core.model.rows import RowModel
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.io.tables import check_column
from pipelines.predict.tables import FileTable, Table
from pipelines.registry.package import OpenedModel


class Asked(NamedTuple):
    """The columns that a model is asked about, and the table beside whose columns it answers."""

    columns: Table
    own: Table


def question_for(model: Model, called: str) -> Question:
    """What is asked of the model `called` so; raises UserError where it answers no table."""
    try:
        return question_of(model)
    except ValueError as error:
        raise UserError(f"{called}: {error}; see `bertsmith models`") from error


def is_of_own_task(model: Model) -> bool:
    """Whether a person wrote its task, so that nothing is known of what its columns hold."""
    return isinstance(model, RowModel)


def asked_of(
    table: FileTable, question: Question, text_column: str | None, second_text_column: str | None
) -> Asked:
    """The columns of a file that the question has, as many of them as there are.

    A person may name the columns of the first and the second text. Raises UserError where the file
    lacks a column.
    """
    texts = [*question.columns, *(name for name in question.optional if name != question.in_place)]
    if second_text_column and len(texts) < 2:
        raise UserError("this model reads one text; leave out --second-text-column")
    named = zip(texts, (text_column, second_text_column), strict=False)
    column_of = {name: name for name in (*question.columns, *question.optional)}
    if text_column:  # one column was named: that one is asked
        column_of.pop(question.in_place, None)
    renamed = {name: theirs for name, theirs in named if theirs}
    column_of |= renamed
    taken = {name: theirs for name, theirs in column_of.items() if theirs in table.columns}
    for name in (*renamed, *question.missing(taken)):
        check_column(
            column_of[name], [*table.columns], table.path, "--text-column or --second-text-column"
        )
    asked = {name: table.columns[theirs] for name, theirs in taken.items()}
    return Asked(asked, table.columns)


def asked_of_texts(question: Question, texts: Sequence[str]) -> Asked:
    """Arguments as rows: a text each, or one row of a text and what belongs to it.

    Where the last column holds lists, the row has two or more texts for it.
    """
    *firsts, last = question.columns
    is_list = holds_lists(question, last)
    if not firsts:
        columns: Table = {last: [*texts]}
    elif len(texts) < len(firsts) + 2 if is_list else len(texts) != len(firsts) + 1:
        raise UserError(
            f"this model needs {' and '.join(question.columns)}"
            f"{' (two or more)' if is_list else ''}, found {', '.join(texts)!r:.80}; give them "
            "as arguments, or in a table with --file"
        )
    else:
        rest = list(texts[len(firsts) :])
        columns = {name: [text] for name, text in zip(firsts, texts, strict=False)}
        columns[last] = [rest if is_list else rest[0]]
    return Asked(columns, columns)


def answer_all(opened: OpenedModel, table: Table, top: int = 1) -> Table:
    """What a model answers to every row, as columns; raises UserError for rows that it cannot.

    With `top` above 1 also so many classes of each row, the likeliest first.
    """
    total = len(next(iter(table.values()), []))
    if not total:
        raise UserError("there is no row to answer")
    check_rows(opened[0], table, range(total), "what is asked")
    return answers_to(*opened, table, top)


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
            if not is_blank(cell) and not (_is_list_of_texts if is_list else _is_text)(cell):
                raise UserError(
                    f"row {number} of {place}, counted from 0: {name} must be "
                    f"{'a list of texts' if is_list else 'a text'}, found {str(cell)[:40]!r}; "
                    "correct it (.jsonl and .parquet hold lists)"
                )


def _is_text(value: object) -> bool:
    return isinstance(value, str | int | float)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def holds_lists(question: Question, name: str) -> bool:
    """Whether the values of a column that is asked about are lists of texts."""
    return name == question.in_place or isinstance(question.example.get(name), list)


def answers_to(
    model: Model, tokenizer: WordPieceTokenizer, rows: Mapping[str, list[object]], top: int = 1
) -> Table:
    """What a model that was opened answers to rows; raises UserError where it cannot."""
    try:
        return answer_table(model, tokenizer, rows, top=top)
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
