"""Rows as examples: the sequences that are read for each, and its values by their types."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from bert_core.batch import RowBatch
from bert_core.inference.rows import EncodedRows
from bert_core.ragged import RaggedBatch
from pipelines.tasks import BadItemError, Item

_CALLED: Final = {str: "text", int: "whole number", float: "number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExamples:
    """N rows, each with the sequences that are read for it."""

    rows: Sequence[Item]
    read: EncodedRows

    @property
    def num_truncated(self) -> int:
        """Texts whose end was left out."""
        return self.read.encoded.num_truncated

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> RowBatch:
        """The rows at `indices`, in that order."""
        chosen = np.asarray(indices).tolist()
        ends = np.cumsum(self.read.texts_per_row)
        places = [
            place
            for row in chosen
            for place in range(ends[row] - self.read.texts_per_row[row], ends[row])
        ]
        encoded = self.read.encoded
        tokens = RaggedBatch.from_sequences(
            [encoded.sequences[place] for place in places],
            [encoded.segment_b_start[place] for place in places],
        )
        return RowBatch(
            tokens=tokens,
            rows=tuple(self.rows[row] for row in chosen),
            texts_per_row=tuple(self.read.texts_per_row[row] for row in chosen),
        )

    def longest(self, size: int) -> RowBatch:
        """The `size` rows of most tokens."""
        lengths = np.fromiter(map(len, self.read.encoded.sequences), np.int64)
        begins = np.cumsum([0, *self.read.texts_per_row[:-1]])
        return self.batch(np.argsort(-np.add.reduceat(lengths, begins), kind="stable")[:size])


def value_of(cell: Any, kind: Any, name: str) -> Any:
    """A cell as its column's type; CSV writes lists as JSON. Raises BadItemError where it is none.

    Whole numbers may come as floats, as tables with gaps hold them.
    """
    is_list = kind not in (str, int, float)
    of = kind.__args__[0] if is_list else kind
    try:
        value = json.loads(cell) if is_list and isinstance(cell, str) else cell
        if is_list and not isinstance(value, list):
            raise ValueError(f"{cell!r:.60} is no list")
        found = [_plain(each, of) for each in (value if is_list else [value])]
    except (ValueError, TypeError) as error:
        called = f"a list of {_CALLED[of]}s" if is_list else f"a {_CALLED[of]}"
        raise BadItemError(f"have {called} in {name}", f"{cell!r:.60}") from error
    return found if is_list else found[0]


def _plain(value: Any, kind: type) -> Any:
    """A text is stripped, and may not be empty; raises ValueError for another type's value."""
    if kind is str and not (isinstance(value, str) and value.strip()):
        raise ValueError("no text")
    if kind is str:
        return value.strip()
    number = float(value)
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        raise ValueError("no such number")
    return kind(number)
