"""The answers of a model with any head to the rows of a table: columns in, columns out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_core.backends.precision import Precision
from bert_core.inference.questions import (
    Answered,
    Columns,
    Question,
    is_blank,
    is_list,
    is_nothing,
    question_of,
)
from bert_core.model.catalogue import Model, MultipleChoice, described
from bert_core.vocabulary import WordPieceTokenizer


class Gap(NamedTuple):
    """A missing text: its row, from 0, and its column."""

    row: int
    column: str


def answer_table(
    model: Model,
    tokenizer: WordPieceTokenizer,
    columns: Columns,
    precision: Precision = "float32",
) -> Answered:
    """The answers to every row, as columns of as many rows.

    Raises ValueError for a head that answers no table, for a missing column, and for a row without
    a text. A second text may be missing: then the first one is alone. A row with `words`, a list
    of words to tag, needs no text.
    """
    check_table(model, columns)
    question = question_of(model)
    return question.answered(model, tokenizer, _asked(question, columns), precision)


def check_table(model: Model, columns: Columns) -> None:
    """Raise ValueError for a head that answers no table, and for a missing column or text.

    Other faults of a row are found by `answer_table`.
    """
    question = question_of(model)
    missing = question.missing(columns)
    if missing:
        raise ValueError(
            f"{described(model.head_name)} is asked of the columns {', '.join(question.columns)}, "
            f"found no {', '.join(missing)} among {', '.join(columns) or 'none'}"
        )
    gap = first_gap(model, columns)
    if gap is not None:
        raise ValueError(
            f"every row must have a {gap.column}, found none in row {gap.row}, counted from 0; "
            "fill it, or leave the row out"
        )


def first_gap(model: Model, columns: Columns) -> Gap | None:
    """The first row that lacks a required text; None if no row does."""
    question = question_of(model)
    needed = (*question.columns, *(question.optional if question.is_of_pairs else ()))
    asked = _asked(question, columns)
    for name in needed:
        for row, value in enumerate(asked.get(name, ())):
            # An empty context has an answer: none.
            is_gap = is_nothing(value) if name == "context" else is_blank(value)
            if is_gap or (is_list(value) and _lacks_texts(model, value)):
                return Gap(row, name)
    return None


def _lacks_texts(model: Model, texts: Sequence[Any]) -> bool:
    """Whether one of them is missing, or all choices are; lists of words may be empty."""
    return any(map(is_nothing, texts)) or (isinstance(model, MultipleChoice) and len(texts) == 0)


def _asked(question: Question, columns: Columns) -> Columns:
    """The columns, the first one replaced by the one that was given in its place."""
    if not question.in_place or question.in_place not in columns:
        return columns
    first, others = question.columns[0], columns[question.in_place]
    own = columns.get(first, [None] * len(others))
    chosen = [mine if is_blank(other) else other for mine, other in zip(own, others, strict=True)]
    return {**columns, first: chosen}
