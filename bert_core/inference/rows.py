"""The answers of a user-defined model to the rows of a table."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert_core.backends.precision import Precision
from bert_core.inference.texts import EncodedTexts, encode_texts, run_batches
from bert_core.model.rows import Row, RowModel
from bert_core.vocabulary import WordPieceTokenizer


class EncodedRows(NamedTuple):
    """The texts of all rows, in the order of the rows."""

    encoded: EncodedTexts
    texts_per_row: list[int]


def encode_rows(
    model: type[RowModel], tokenizer: WordPieceTokenizer, rows: Sequence[Row], max_tokens: int
) -> EncodedRows:
    """The texts that `model` reads for each row, cut to `max_tokens`.

    Raises ValueError for a row without a text, and for what is no text.
    """
    found = [list(model.texts(row)) for row in rows]
    for number, texts in enumerate(found):
        if not texts:
            raise ValueError(f"row {number}, counted from 0, has nothing to read; leave it out")
    every = [text for texts in found for text in texts]
    return EncodedRows(encode_texts(tokenizer, every, max_tokens), list(map(len, found)))


def answers_of(
    model: RowModel, outputs: Tensor, texts_per_row: Sequence[int], rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """An answer for each row, from the outputs [N, ...] for the texts of all rows.

    Raises ValueError if an answer has other columns than the model's `gives`.
    """
    split = outputs.float().split(list(texts_per_row))
    answers = [model.answer(own, row) for own, row in zip(split, rows, strict=True)]
    for answer in answers:
        are_of = (_is_of(answer.get(name), kind) for name, kind in model.gives.items())
        if answer.keys() != model.gives.keys() or not all(are_of):
            raise ValueError(
                f"an answer of {type(model).__name__} must be plain values as its gives says, "
                f"{dict(model.gives)}, got {answer!r:.200}; correct its answer"
            )
    return answers


def _is_of(value: Any, kind: Any) -> bool:
    if kind in (str, int, float):
        return isinstance(value, (int, float) if kind is float else kind)
    return isinstance(value, list) and all(_is_of(each, kind.__args__[0]) for each in value)


def answer_rows(
    model: RowModel,
    tokenizer: WordPieceTokenizer,
    rows: Sequence[Row],
    precision: Precision = "float32",
) -> list[dict[str, Any]]:
    """An answer for each row; raises ValueError for rows that cannot be read."""
    encoded, counts = encode_rows(
        type(model), tokenizer, rows, model.config.max_position_embeddings
    )
    found = run_batches(model, encoded, model, batch_tokens=None, precision=precision)
    values = torch.cat([each.values for each in found])
    places = torch.cat([each.members for each in found])
    return answers_of(model, values[places.argsort()], counts, rows)


def rows_in(model: RowModel, columns: Any) -> list[Row]:
    """The rows of a table, with plain texts and lists of them whatever library holds it."""
    lists = [name for name, kind in model.takes.items() if kind is not str]
    read = {
        name: [
            [str(each) for each in np.asarray(value, object)] if name in lists else str(value)
            for value in columns[name]
        ]
        for name in model.takes
    }
    return [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]
