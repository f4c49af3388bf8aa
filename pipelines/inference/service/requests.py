"""What the body of an HTTP request asks: the formats of MLflow's server that hold tables."""

import json
from collections.abc import Sequence
from typing import Any, Final

from bert_core.inference.questions import Question
from pipelines.config.errors import UserError
from pipelines.inference.tables import Table

_FORMATS: Final = (
    'the body must be JSON: {"dataframe_records": [{"text": "…"}]}, or '
    '{"dataframe_split": {"columns": ["text"], "data": [["…"]]}}'
)


def asked_of_body(body: bytes, question: Question) -> Table:
    """The columns of a request that the question has; others are ignored, as MLflow does.

    Raises UserError for what is no such table, and for cells of another kind than the question's.
    """
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise UserError(f"{_FORMATS}; found {body[:40]!r}") from None
    found = _columns(given)
    # In place of texts that are not there, as in a data frame; the model says which it misses.
    asked = {
        name: found[name] for name in (*question.columns, *question.optional)
        if name in found
        and not (name in question.optional and all(cell is None for cell in found[name]))
    }  # fmt: skip
    for name, cells in asked.items():
        is_list = name == question.in_place or isinstance(question.example.get(name), list)
        for row, cell in enumerate(cells):
            if cell is not None and not (_is_texts(cell) if is_list else isinstance(cell, str)):
                wanted = "a list of strings" if is_list else "a string"
                raise UserError(f"row {row}: {name} must be {wanted}, found {json.dumps(cell):.40}")
    return asked


def _columns(given: Any) -> Table:
    match given:
        case {"dataframe_records": [_, *_] as rows} if all(isinstance(row, dict) for row in rows):
            names = dict.fromkeys(name for row in rows for name in row)
            return {name: [row.get(name) for row in rows] for name in names}
        case {"dataframe_split": {"columns": list(names), "data": [_, *_] as rows}} if all(
            isinstance(row, list) and len(row) == len(names) for row in rows
        ) and _is_texts(names):
            return {name: [row[place] for row in rows] for place, name in enumerate(names)}
    raise UserError(f"{_FORMATS}, with at least one row; found {json.dumps(given):.80}")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def num_characters(asked: Table) -> int:
    """Of all texts: how much work a request is, known before anything is encoded."""
    return sum(_length(cell) for cells in asked.values() for cell in cells)


def _length(cell: str | Sequence[str] | None) -> int:
    if cell is None or isinstance(cell, str):
        return len(cell or "")
    return sum(map(len, cell))


def merged(tables: Sequence[Table]) -> Table:
    """The rows of tables with the same columns, in their order."""
    return {name: [cell for table in tables for cell in table[name]] for name in tables[0]}


def divided(answers: Table, sizes: Sequence[int]) -> list[Table]:
    """The answers of each table whose rows were merged: the other way round."""
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [
        {name: values[end - size : end] for name, values in answers.items()}
        for size, end in zip(sizes, ends, strict=True)
    ]
