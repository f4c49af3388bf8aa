"""Asking a model: rows in, answers beside them out."""

from collections.abc import Callable, Mapping, Sequence

from bert_core.inference.tables import answer_table, first_gap, question_of
from bert_core.model.catalogue import Model, described
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.core.errors import UserError
from pipelines.insight.tables import Table
from pipelines.registry.opening import OpenedModel

_ROWS_AT_ONCE = 2048

Watch = Callable[[int, int], None]  # called with rows done, rows in all


def ask(
    opened: OpenedModel,
    called: str,
    table: Table,
    *,
    heads: Sequence[str],
    watch: Watch = lambda done, total: None,
) -> Table:
    """What a model, `called` so by whoever asks, answers to every row, as columns.

    Raises UserError for a model whose head is not one of `heads`, for a table without the columns
    that are asked about, and for rows that cannot be answered.
    """
    model, tokenizer = opened
    if model.head_name not in heads:
        raise UserError(
            f"{called} must be {described(' or '.join(heads))} for this, found "
            f"{described(model.head_name)}; see `bertsmith models`"
        )
    total = len(next(iter(table.values()), []))
    if not total:
        raise UserError("there must be a row to answer, found none")
    refuse_gaps(model, table, range(total), "what is asked")
    answered: Table = {}
    for first in range(0, total, _ROWS_AT_ONCE):
        rows = {name: values[first : first + _ROWS_AT_ONCE] for name, values in table.items()}
        for name, values in answers_to(model, tokenizer, rows).items():
            answered.setdefault(name, []).extend(values)
        watch(min(total, first + _ROWS_AT_ONCE), total)
    return answered


def refuse_gaps(model: Model, table: Table, numbers: Sequence[int], place: str) -> None:
    """Raise UserError, with its number of `numbers`, for a row that lacks a text it needs."""
    gap = first_gap(model, table)
    if gap is not None:
        raise UserError(
            f"every row of {place} must have a {gap.column}, found none in row "
            f"{numbers[gap.row]}, counted from 0; fill it, or leave the row out"
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
