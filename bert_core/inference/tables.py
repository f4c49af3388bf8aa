"""The answers of any model to the rows of a table: columns in, columns out."""

import math
from collections.abc import Container, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bert_core.backends.context import Precision
from bert_core.inference.answers import answer, assign_labels, choose, classify, rate, tag
from bert_core.inference.confidence import GUESS, withheld
from bert_core.inference.pretrained import embed
from bert_core.inference.texts import EncodedTexts, Text, encode_texts, run_batches
from bert_core.inference.words import have_prefixes, spans_of
from bert_core.model.catalogue import (
    Model,
    MultiLabelClassifier,
    MultipleChoice,
    SentenceEncoder,
    SequenceClassifier,
    SequenceRegressor,
    SpanPredictor,
    TokenClassifier,
    described,
)
from bert_core.model.rows import Row, RowModel
from bert_core.model.task_models import OneOfClasses, class_names
from bert_core.vocabulary import WordPieceTokenizer

Columns = Mapping[str, Sequence[Any]]  # all of one length, that of the table
Answered = dict[str, list[Any]]

_TEXT: Final = "Returns the sum of the elements along the given axis."
_TEXTS: Final = ("Along each axis.", "Along the first axis.")


class Question(NamedTuple):
    """What a head is asked, and what its answers hold."""

    columns: tuple[str, ...]
    optional: tuple[str, ...]  # of texts
    answers: Mapping[str, Any]  # columns of answers and what they hold: str, int, float, lists
    is_of_pairs: bool = False  # if the optional column is given, every row needs it
    in_place: str = ""  # an optional column that can replace the first one
    # A value for each column of `columns`: a row that can be answered.
    example: Mapping[str, str | list[str]] = MappingProxyType({"text": _TEXT})

    def missing(self, names: Container[str]) -> list[str]:
        """The required columns that are not among `names`."""
        if self.in_place and self.in_place in names:
            return [name for name in self.columns[1:] if name not in names]
        return [name for name in self.columns if name not in names]


def question_of(model: Model | type[Model]) -> Question:
    """What is asked of this model, or models of this class; raises ValueError if nothing is."""
    kind = model if isinstance(model, type) else type(model)
    if getattr(model, "min_confidence", 0.0):  # of a class it is 0
        question = question_of(kind)
        kind_of_answer = next(iter(question.answers.values()))
        return question._replace(answers={**question.answers, GUESS: kind_of_answer})
    if issubclass(kind, RowModel):
        example: dict[str, str | list[str]] = {
            name: _TEXT if value is str else list(_TEXTS) for name, value in kind.takes.items()
        }
        return Question(tuple(kind.takes), (), kind.gives, example=example)
    if kind.head_name not in _QUESTIONS:
        raise ValueError(f"{described(kind.head_name)} answers no table")
    return _QUESTIONS[kind.head_name]


def is_nothing(value: Any) -> bool:
    """Whether it is None, NaN or pandas' NA."""
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or type(value).__name__ == "NAType"
    )


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing: a text of white space is none, either."""
    return is_nothing(value) or (isinstance(value, str) and not value.strip())


def is_list(value: Any) -> bool:
    """Whether it is a list, or an array that pandas made of one."""
    return isinstance(value, list | tuple | np.ndarray)


def _texts(columns: Columns) -> list[Text]:
    """Texts, or pairs where there is a second text."""
    texts = [str(text) for text in columns["text"]]
    seconds = columns.get("second_text")
    if seconds is None:
        return list(texts)
    return [
        text if is_blank(second) else (text, str(second))
        for text, second in zip(texts, seconds, strict=True)
    ]


def _answered(
    model: Model, tokenizer: WordPieceTokenizer, columns: Columns, precision: Precision, top: int
) -> Answered:
    """The columns of answers, which the head decides; of classes also the `top` likeliest."""
    asked = (model, tokenizer)
    if isinstance(model, RowModel):
        rows, max_tokens = rows_in(model, columns), model.config.max_position_embeddings
        encoded, numbers_of_texts = encode_rows(type(model), tokenizer, rows, max_tokens)
        outputs = run_batches(model, encoded, model, precision)
        every = torch.cat([each.values for each in outputs])
        places = torch.cat([each.members for each in outputs])
        answered = answers_of(model, every[places.argsort()], numbers_of_texts, rows)
        return {name: [row[name] for row in answered] for name in model.gives}
    if isinstance(model, SequenceClassifier):
        classes = classify(*asked, _texts(columns), precision)
        likeliest = np.argsort(-classes.probabilities, axis=1, kind="stable")[:, :top]
        labels, values = class_names(model), np.take_along_axis(classes.probabilities, likeliest, 1)
        answers: Answered = {"label": classes.labels, "probability": values[:, 0].tolist()}
        if top > 1:
            answers["labels"] = [[labels[index] for index in row] for row in likeliest]
            answers["probabilities"] = values.tolist()
        return answers
    if isinstance(model, MultiLabelClassifier):
        several = assign_labels(*asked, _texts(columns), precision=precision)
        falling = -np.sort(-several.probabilities, axis=1)  # as the labels are ordered
        counts = map(len, several.labels)
        assigned = [row[:count].tolist() for row, count in zip(falling, counts, strict=True)]
        return {"labels": several.labels, "probabilities": assigned}
    if isinstance(model, SequenceRegressor):
        numbers = rate(*asked, _texts(columns), precision).values
        return {"value": numbers.astype("float64").tolist()}
    if isinstance(model, TokenClassifier):
        tagged = tag(
            *asked,
            [list(map(str, text)) if is_list(text) else str(text) for text in columns["text"]],
            precision,
        )
        tags = [[word.label for word in words] for words in tagged]
        where = [[(word.begin, word.end) for word in words] for words in tagged]
        are_entities = have_prefixes(class_names(model))
        return {
            "words": [[word.word for word in words] for words in tagged],
            "tags": tags,
            "spans": [
                spans_of(each, places, are_entities=are_entities)
                for each, places in zip(tags, where, strict=True)
            ],
        }
    if isinstance(model, MultipleChoice):
        chosen = [
            choose(*asked, str(text), list(map(str, choices)), precision)
            for text, choices in zip(columns["text"], columns["choices"], strict=True)
        ]
        probabilities = [max(one.probabilities) for one in chosen]
        return {"choice": [one.index for one in chosen], "probability": probabilities}
    if isinstance(model, SpanPredictor):
        spans = [
            answer(*asked, str(question), str(context), precision=precision)
            for question, context in zip(columns["question"], columns["context"], strict=True)
        ]
        return {
            "answer": [one.text for one in spans],
            "begin": [one.begin for one in spans],
            "null_lead": [one.null_score - one.score for one in spans],
        }
    names = [name for name in ("text", "second_text") if name in columns]
    is_pair = isinstance(model, SentenceEncoder) and len(names) == 2
    vectors = [
        embed(
            *asked, list(map(str, columns[name])), normalize=True if is_pair else None,
            precision=precision,
        ).vectors
        for name in (names if is_pair else ("text",))
    ]  # fmt: skip
    if is_pair:  # the cosine of each
        return {"value": (vectors[0] * vectors[1]).sum(axis=1).astype("float64").tolist()}
    return {"embedding": list(vectors[0])}  # N arrays [D]


_ONE_OR_TWO = (("text",), ("second_text",))
_EMBEDDED: Final = Question(("text",), (), {"embedding": list[float]})
_QUESTIONS: Final = {
    "encoder": _EMBEDDED,
    "pretraining": _EMBEDDED,
    "sequence_classification": Question(
        *_ONE_OR_TWO, {"label": str, "probability": float}
    ),
    "multi_label_classification": Question(
        *_ONE_OR_TWO, {"labels": list[str], "probabilities": list[float]}
    ),
    "regression": Question(*_ONE_OR_TWO, {"value": float}),
    "token_classification": Question(
        ("text",), ("words",), {"words": list[str], "tags": list[str], "spans": list[dict]},
        in_place="words",
    ),
    "multiple_choice": Question(
        ("text", "choices"), (), {"choice": int, "probability": float},
        example={"text": _TEXT, "choices": list(_TEXTS)},
    ),
    "span_prediction": Question(
        ("question", "context"), (), {"answer": str, "begin": int, "null_lead": float},
        example={"question": "What does it return?", "context": _TEXT},
    ),
    "sentence_embedding": Question(
        *_ONE_OR_TWO, {"embedding": list[float]}, is_of_pairs=True
    ),
}  # fmt: skip


class Gap(NamedTuple):
    """A missing text: its row, from 0, and its column."""

    row: int
    column: str


def answer_table(
    model: Model,
    tokenizer: WordPieceTokenizer,
    columns: Columns,
    precision: Precision = "float32",
    min_confidence: float = 0.0,
    top: int = 1,
) -> Answered:
    """The answers to every row, as columns of as many rows.

    Classes and choices whose probability is below `min_confidence`, or the model's own, are None,
    and the column `guess` holds all of them. With `top` above 1 the columns `labels` and
    `probabilities` hold so many classes, the likeliest first. Raises ValueError for a head that
    answers no table, or gives no one probability a row (no one class) where one is asked for, for a
    missing column, and for a row without a text. A second text may be missing: then the first one
    is alone. A row with `words`, a list of words to tag, needs no text.
    """
    check_table(model, columns)
    least = min_confidence or getattr(model, "min_confidence", 0.0)
    if least and not gives_one_probability(model):
        raise ValueError(
            f"{described(model.head_name)} gives no one probability a row; leave out min_confidence"
        )
    if top > 1 and not isinstance(model, SequenceClassifier):
        raise ValueError(f"{described(model.head_name)} gives no one class a row; leave out top")
    answers = _answered(model, tokenizer, _asked(question_of(model), columns), precision, top)
    return withheld(answers, least) if least else answers


def gives_one_probability(model: Model) -> bool:
    """Whether each answer has a probability, below which it can be withheld."""
    return isinstance(model, OneOfClasses) and "probability" in question_of(model).answers


def check_table(model: Model, columns: Columns) -> None:
    """Raise ValueError for a head that answers no table, and for a missing column or text.

    Other faults of a row are found by `answer_table`.
    """
    question = question_of(model)
    missing = question.missing(columns)
    if missing:
        raise ValueError(
            f"there is no column {' and no column '.join(missing)}; "
            f"{described(model.head_name)} reads {', '.join(question.columns)}"
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
            # An empty context has an answer: none. A list of words may be empty, too.
            is_gap = is_nothing(value) if name == "context" else is_blank(value)
            if is_list(value):
                is_gap = any(map(is_nothing, value))
            if is_gap:
                return Gap(row, name)
            if name == "choices" and isinstance(model, MultipleChoice) and is_list(value):
                lacking = _lacking_choice(value)
                if lacking:
                    return Gap(row, lacking)
    return None


def _lacking_choice(choices: Sequence[Any]) -> str:
    """What is missing to choose between texts; empty if nothing is, or if they are none."""
    if not all(isinstance(choice, str | int | float) for choice in choices):
        return ""
    if len(choices) < 2:
        return "second choice" if len(choices) else "choices"
    return "text in each of its choices" if any(map(is_blank, choices)) else ""


def _asked(question: Question, columns: Columns) -> Columns:
    """The columns, the first one replaced by the one that was given in its place."""
    if not question.in_place or question.in_place not in columns:
        return columns
    first, others = question.columns[0], columns[question.in_place]
    own = columns.get(first, [None] * len(others))
    chosen = [mine if is_blank(other) else other for mine, other in zip(own, others, strict=True)]
    return {**columns, first: chosen}


def encode_rows(
    model: type[RowModel], tokenizer: WordPieceTokenizer, rows: Sequence[Row], max_tokens: int
) -> tuple[EncodedTexts, list[int]]:
    """The texts that `model` reads for the rows, cut to `max_tokens`, and how many for each.

    Raises ValueError for a row without a text, and for what is no text.
    """
    texts = [list(model.texts(row)) for row in rows]
    if [] in texts:
        number = texts.index([])
        raise ValueError(f"row {number}, counted from 0, has nothing to read; leave it out")
    encoded = encode_texts(tokenizer, [text for each in texts for text in each], max_tokens)
    return encoded, list(map(len, texts))


def answers_of(
    model: RowModel, outputs: Tensor, texts_per_row: Sequence[int], rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """An answer for each row, from the outputs [N, ...] for the texts of all rows.

    Raises ValueError if an answer has other columns than the model's `gives`.
    """
    split = outputs.float().split(list(texts_per_row))
    answers = [model.answer(each, row) for each, row in zip(split, rows, strict=True)]
    for own in answers:
        are_of = (_is_of(own.get(name), kind) for name, kind in model.gives.items())
        if own.keys() != model.gives.keys() or not all(are_of):
            raise ValueError(
                f"an answer of {type(model).__name__} must be plain values as its gives says, "
                f"{dict(model.gives)}, got {own!r:.200}; correct its answer"
            )
    return answers


def _is_of(value: Any, kind: Any) -> bool:
    if kind in (str, int, float):
        return isinstance(value, (int, float) if kind is float else kind)
    return isinstance(value, list) and all(_is_of(each, kind.__args__[0]) for each in value)


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
