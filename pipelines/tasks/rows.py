"""A user's own task: rows of a table, and the class in the user's file that answers them.

The file is read once, where labelled items are made; from there it travels with them, and with
every model that learns from them.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import torch
from pydantic import Field, StringConstraints, TypeAdapter

from bert_core.batch import RaggedBatch, RowBatch
from bert_core.inference.tables import answers_of, encode_rows
from bert_core.inference.texts import EncodedTexts
from bert_core.model.catalogue import MODELS, Model
from bert_core.model.rows import CODE_FILE, RowModel, row_model
from bert_core.vocabulary import WordPieceTokenizer
from pipelines.errors import UserError
from pipelines.io.files import open_binary
from pipelines.store import Artifact
from pipelines.tasks import Answers, BadItemError, Form, Item, Items, Reading, TaskFamily
from pipelines.tasks.encoding import outputs
from pipelines.tasks.scoring import WeightedScore, mean

_Text = Annotated[str, Field(strict=True), StringConstraints(strip_whitespace=True, min_length=1)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_LISTS: Final = (list[str], list[int], list[float])
_CHECKED: Final[Mapping[Any, Any]] = {
    str: _Text, int: int, float: _Number,
    list[str]: list[_Text], list[int]: list[int], list[float]: list[_Number],
}  # fmt: skip
_CALLED: Final[Mapping[Any, str]] = {
    str: "text", int: "whole number", float: "number", list[str]: "list of texts",
    list[int]: "list of whole numbers", list[float]: "list of numbers",
}  # fmt: skip
_TYPES: Final[Mapping[Any, pa.DataType]] = {
    str: pa.string(), int: pa.int64(), float: pa.float64(), list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int64()), list[float]: pa.list_(pa.float64()),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExamples:
    """N rows, each with the sequences that are read for it."""

    rows: Sequence[Item]
    encoded: EncodedTexts
    texts_per_row: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: np.ndarray) -> RowBatch:
        """The rows at `indices`, in that order."""
        chosen = np.asarray(indices).tolist()
        ends = np.cumsum(self.texts_per_row)
        places = [
            place
            for row in chosen
            for place in range(ends[row] - self.texts_per_row[row], ends[row])
        ]
        tokens = RaggedBatch.from_sequences(
            [self.encoded.sequences[place] for place in places],
            [self.encoded.segment_b_start[place] for place in places],
        )
        return RowBatch(
            tokens=tokens,
            rows=tuple(self.rows[row] for row in chosen),
            texts_per_row=tuple(self.texts_per_row[row] for row in chosen),
        )


def value_of(cell: Any, kind: Any, name: str) -> Any:
    """A cell as its column's type; CSV writes lists as JSON. Raises BadItemError where it is none.

    Texts are stripped. Whole numbers may come as floats, as tables with gaps hold them.
    """
    try:
        value = json.loads(cell) if kind in _LISTS and isinstance(cell, str) else cell
        return TypeAdapter(_CHECKED[kind]).validate_python(value)
    except ValueError as error:
        raise BadItemError(f"have a {_CALLED[kind]} in {name}", f"{cell!r:.60}") from error


def read_task(path: str, taken: Sequence[str]) -> "RowTask":
    """The task in the file at `path`, a URL too, which is run; `taken` are the others' names.

    Raises UserError where there is none that can be used.
    """
    name = PurePosixPath(path).stem
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in (*taken, *MODELS, "classifier"):
        raise UserError(
            f"{name} cannot be the name of a task"
            + (": Bertsmith has a task or head of that name" if name in (*taken, *MODELS) else "")
            + f"; rename {path}: use small letters, digits and _"
        )
    with open_binary(path) as file:
        raw = file.read()
    try:
        return RowTask(row_model(raw.decode("utf-8-sig"), name))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not Python in UTF-8 ({error}); convert it") from error
    except ValueError as error:
        raise UserError(f"the task {path} cannot be used: {error}") from error


def carried_task(artifact: Artifact) -> "RowTask | None":
    """The user's own task that an artifact carries; None where it has none."""
    if CODE_FILE not in artifact.names():
        return None
    source = artifact.local(CODE_FILE).read_text(encoding="utf-8")
    return RowTask(row_model(source, artifact.statistics["family"]))


class RowTask(TaskFamily):
    """Rows, answered by the class that was written for them."""

    form: Form = "rows"
    guess = "task's own guess"
    curve: Mapping[str, str] = {"label_loss": "eval/loss"}

    def __init__(self, model: type[RowModel]) -> None:
        self.model = model
        self.score = f"eval/{model.score}"
        self._kinds = {**model.takes, **model.learns}

    @property
    def name(self) -> str:
        """That of the file, without its ending."""
        return self.model.head_name

    @property
    def schema(self) -> pa.Schema:
        """A column for each that the class takes or learns."""
        return pa.schema({name: _TYPES[kind] for name, kind in self._kinds.items()})

    def item(self, record: Mapping[str, Any]) -> Item:
        """A row with a value of its type in each column, which the class reads and scores.

        Raises BadItemError for one that is none.
        """
        missing = [name for name in self._kinds if record.get(name) is None]
        if missing:
            raise BadItemError(f"have a value in {', '.join(self._kinds)}", f"none in {missing[0]}")
        row = {name: value_of(record[name], kind, name) for name, kind in self._kinds.items()}
        try:
            texts = self.model.texts(row)
            figures = self.model.scored(self.model.guess(row), row)
        except Exception as error:  # whatever a person's own code raises
            raise BadItemError(
                f"be one that {self.model.__name__} can read and score",
                f"{type(error).__name__} ({error})",
            ) from error
        if not texts:
            raise BadItemError("have texts to read", "none")
        if self.model.score not in figures or not all(map(math.isfinite, figures.values())):
            raise BadItemError(f"have a number as its {self.model.score}", repr(figures))
        return row

    def group(self, item: Item) -> str:
        """Rows whose first column is the same stay together."""
        return str(item[next(iter(self.model.takes))])

    def content(self, item: Item) -> str:
        return json.dumps([item[name] for name in self.model.takes])

    def labels(self, train: Sequence[Item], heldout: Sequence[Item]) -> tuple[str, ...]:
        """No classes; raises UserError where there is no row to learn from."""
        if not train:
            raise UserError("there is no row to learn from; give more rows")
        return ()

    def described(self, train: Items, heldout: Items) -> dict[str, Any]:
        """The figures of the class's own guess."""
        guessed = [self.model.guess(row) for row in heldout.rows]
        figures = self.figures(Answers(guessed, 0), heldout)
        return {name.replace("eval/", "baseline/"): value for name, value in figures.items()}

    def examples(
        self, items: Items, tokenizer: WordPieceTokenizer, reading: Reading
    ) -> RowExamples:
        """The rows with the texts that are read for each, cut to what is read."""
        encoded, counts = encode_rows(self.model, tokenizer, items.rows, reading.max_tokens)
        return RowExamples(rows=items.rows, encoded=encoded, texts_per_row=counts)

    @torch.inference_mode()
    def answers(
        self, model: Model, tokenizer: WordPieceTokenizer, items: Items, reading: Reading
    ) -> Answers:
        """What the model answers to each row; it may be of another class, with its own code."""
        assert isinstance(model, RowModel)
        encoded, counts = encode_rows(type(model), tokenizer, items.rows, reading.max_tokens)
        _, first = next(encoded.batches(1))
        logits = outputs(model, encoded, reading, *model(first).shape[1:])
        values = answers_of(model, torch.from_numpy(logits), counts, items.rows)
        return Answers(values, encoded.num_truncated)

    def scores(self, answers: Answers, items: Items) -> Mapping[str, WeightedScore]:
        """The means of the figures that the class gives an answer."""
        figures = self._scored(answers, items)
        return {f"eval/{name}": mean([each[name] for each in figures]) for name in figures[0]}

    def _scored(self, answers: Answers, items: Items) -> list[dict[str, float]]:
        return [
            self.model.scored(value, row)
            for value, row in zip(answers.values, items.rows, strict=True)
        ]
