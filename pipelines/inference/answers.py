"""Asking a model: rows in, answers beside them out; and the words that fill a gap."""

from collections.abc import Callable, Mapping, Sequence

from bert_core.inference import Candidate, fill_mask
from bert_core.inference.tables import Question, answer_table, first_gap, question_of
from bert_core.model.catalogue import Model, PretrainingModel, described
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.inference.tables import Table
from pipelines.registry.lookups.folders import OpenedModel

_ROWS_AT_ONCE = 2048

Watch = Callable[[int, int], None]  # called with rows done, rows in all


def question_for(model: Model, called: str) -> Question:
    """What is asked of the model `called` so; raises UserError where it answers no table."""
    try:
        return question_of(model)
    except ValueError as error:
        raise UserError(f"{called}: {error}; see `bertsmith models`") from error


def answer_all(opened: OpenedModel, table: Table, watch: Watch = lambda done, total: None) -> Table:
    """What a model answers to every row, as columns.

    Raises UserError for a table without the columns that are asked about, and for rows that cannot
    be answered.
    """
    total = len(next(iter(table.values()), []))
    if not total:
        raise UserError("there is no row to answer")
    check_gaps(opened[0], table, range(total), "what is asked")
    answered: Table = {}
    for first in range(0, total, _ROWS_AT_ONCE):
        rows = {name: values[first : first + _ROWS_AT_ONCE] for name, values in table.items()}
        for name, values in answers_to(*opened, rows).items():
            answered.setdefault(name, []).extend(values)
        watch(min(total, first + _ROWS_AT_ONCE), total)
    return answered


def check_gaps(model: Model, table: Table, numbers: Sequence[int], place: str) -> None:
    """Raise UserError, with its number of `numbers`, for a row that lacks a text it needs."""
    gap = first_gap(model, table)
    if gap is not None:
        raise UserError(
            f"row {numbers[gap.row]} of {place}, counted from 0, has no {gap.column}; fill it, or "
            "leave the row out"
        )


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
    """For each [MASK] of `text`, the `top_k` likeliest pieces in the eyes of the encoder `called`.

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
            f"{called} has {tokenizer.vocab_size:,} pieces to choose from, asked were the "
            f"{top_k:,} likeliest; ask for fewer"
        )
    try:
        return fill_mask(model, tokenizer, text, top_k=top_k)
    except ValueError as error:  # a text longer than the model reads
        raise UserError(str(error)) from error
