"""Which columns of a table hold what: named in the settings, or found by the names that are usual.

The names of GLUE's own files, of SWAG's and of the datasets on Hugging Face's hub are among them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pipelines.config.errors import UserError
from pipelines.io.records import TEXT_COLUMNS, check_names
from pipelines.stages.dataset.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Form

_SETTINGS: Final = ("text_column", "second_text_column", "label_column", "group_column")
_PAIRS: Final = (
    ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"),
    ("#1 string", "#2 string"), ("text1", "text2"), ("text_a", "text_b"),
    ("question", "sentence"), ("query", "passage"), ("anchor", "positive"),
    ("text", "second_text"),
)  # fmt: skip
_LABELS: Final = (
    "label", "gold_label", "class", "category", "target", "tag", "labels", "is_duplicate",
    "quality", "score", "similarity", "similarity_score", "rating",
)  # fmt: skip
_INFERENCE: Final = ("premise", "hypothesis")
_OTHERS: Final = ("negative", "hard_negative")
_PROMPTS: Final = ("sent1", "prompt", "question", "context", "ctx", "startphrase", *TEXT_COLUMNS)
_CHOICE_LISTS: Final = ("choices", "endings", "options")
_CHOICE: Final = re.compile(r"(ending|choice|option|distractor|answer)[-_ ]?(\d+)")
_PASSAGES: Final = ("context", "article", "passage")  # which a question of several choices is about
_GOLD: Final = "gold-ending"  # of SWAG's full files: the right one, before the distractors
_ANSWERS: Final = ("label", "answer", "answer_index", "answerkey", "gold", "correct", "target")
_USUAL: Final[dict[Form, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "texts": (TEXT_COLUMNS, _LABELS),
    "choices": (_PROMPTS, _ANSWERS),
    "pairs": (TEXT_COLUMNS, _LABELS),
    "words": (("words", "tokens"), ("tags", "ner_tags", "labels", "pos_tags", "upos")),
    "questions": (("question",), ("answers", "answer")),
}


class Columns(NamedTuple):
    """Indices of the columns; None for what a table does not hold."""

    text: int
    label: int | None
    second: int | None = None
    group: int | None = None
    choices: tuple[int, ...] = ()
    start: int | None = None  # of every choice: SWAG's sent2
    other: int | None = None  # a text that fits the first one badly
    name: int | None = None  # of a question
    first_row: int = 1  # that holds data
    is_taken_for_header: bool = False  # the first row, by its label alone
    is_inference: bool = False  # classes of natural language inference, as it publishes them

    def said(self, rows: Sequence[Sequence[Any]]) -> str:
        """Which columns of a table were taken for what, by their names or else their numbers."""
        has_names = self.first_row > 0
        roles = {
            "text": self.text, "second text": self.second, "label": self.label,
            "group": self.group, "other text": self.other,
        }  # fmt: skip
        taken: dict[str, tuple[int, ...]] = {
            role: (place,) for role, place in roles.items() if place is not None
        }
        if self.choices:
            taken["choices"] = self.choices
        called = {
            role: ", ".join(
                repr(str(rows[0][n]).strip()) if has_names else str(n + 1) for n in places
            )
            for role, places in taken.items()
        }
        return "; ".join(f"{role} from column {names}" for role, names in called.items())


def columns_of(
    settings: LabelledFile | LabelledDataset, form: Form, rows: Sequence[Sequence[Any]]
) -> Columns:
    """The columns of a table, from its first row's names; two columns need none.

    Of two columns without names the one with fewer different values is the label. Where columns
    are named by numbers a first row is a header if its label is a word that no other row has.
    Raises UserError where a column that is named is not there, or one has to be named.
    """
    names = [str(cell).strip() for cell in rows[0]]
    named = [value for setting in _SETTINGS if (value := getattr(settings, setting))]
    named += settings.choice_columns
    first_row, is_taken_for_header = 1, False
    if named and all(map(str.isdecimal, named)) and not set(named) <= set(names):
        names = [str(number) for number in range(1, len(names) + 1)]
        is_taken_for_header = _has_header(rows, settings.label_column)
        first_row = int(is_taken_for_header)
    header = _Header(settings, names, [name.lower() for name in names])
    if form == "pairs":
        return _of_pairs(header, first_row, rows)
    texts, labels = _USUAL[form]
    pair = header.pair() if form == "texts" else None
    text = header.find("text_column", pair[:1] if pair else texts)
    label = header.find("label_column", labels)
    if (text is None or label is None) and not named and form == "texts" and len(names) == 2:
        return _of_two(rows)
    choices, has_gold = header.choices() if form == "choices" else ((), False)
    if text is None or (label is None and not has_gold):
        if not named:
            raise UserError(
                f"cannot tell which columns of {settings.place} hold what, found "
                f"{', '.join(names)[:200]}; name them with text_column and label_column"
            )
        if text is None:
            raise header.missing("text_column", texts)
        raise header.missing("label_column", labels)
    seconds: Sequence[str] = ("context",)
    if form == "texts":
        seconds = pair[1:] if pair else ()
    elif form == "choices":
        seconds = _PASSAGES if header.lowered[text] == "question" else ()
    second = header.optional("second_text_column", seconds)
    if second is None and form == "questions":
        raise header.missing("second_text_column", seconds)
    group = header.optional("group_column")
    if form == "choices" and not choices:
        raise UserError(
            f"{settings.place} has no columns with choices, found {', '.join(names)[:200]}; name "
            "them with choice_columns"
        )
    return Columns(
        text=text,
        label=None if has_gold else label,
        second=None if form == "words" else second,
        group=group,
        choices=choices,
        start=header.place_of("sent2") if form == "choices" else None,
        is_inference=label is not None and header.lowered[label] == "gold_label",
        name=header.place_of("id") if form == "questions" else None,
        first_row=first_row,
        is_taken_for_header=is_taken_for_header,
    )


class _Header(NamedTuple):
    """The names of a table's columns, and which of them the settings name."""

    settings: LabelledFile | LabelledDataset
    names: list[str]
    lowered: list[str]

    def place_of(self, *usual: str) -> int | None:
        """The column with the first of these names that there is."""
        return next((self.lowered.index(name) for name in usual if name in self.lowered), None)

    def find(self, setting: str, usual: Sequence[str] = ()) -> int | None:
        """The column that the setting names, or else the first of the usual ones."""
        named = getattr(self.settings, setting)
        if named:
            found = self.names.index(named) if named in self.names else None
        else:
            found = self.place_of(*usual)
        if found is not None:
            read = self.names[found]
            check_names([name for name in self.names if name == read], self.settings.place)
        return found

    def optional(self, setting: str, usual: Sequence[str] = ()) -> int | None:
        """As `find`; raises UserError if the setting names a column that is not there."""
        found = self.find(setting, usual)
        if found is None and getattr(self.settings, setting):
            raise self.missing(setting, usual)
        return found

    def pair(self) -> tuple[str, str] | None:
        """The usual pair that the table has; where the first text is named, the one it begins."""
        first = self.settings.text_column.lower()
        begun = [pair for pair in _PAIRS if first in ("", pair[0])]
        return next((pair for pair in begun if set(pair) <= set(self.lowered)), None)

    def choices(self) -> tuple[tuple[int, ...], bool]:
        """The columns of the choices, and whether the first of them is always the right one."""
        named = self.settings.choice_columns
        absent = [name for name in named if name not in self.names]
        if absent:
            raise self.missing("choice_columns", absent)
        if named:
            return tuple(map(self.names.index, named)), False
        whole = self.place_of(*_CHOICE_LISTS)
        if whole is not None:
            return (whole,), False
        numbered = sorted(
            (found[1], int(found[2]), place)
            for place, name in enumerate(self.lowered)
            if (found := _CHOICE.fullmatch(name))
        )
        places = tuple(place for _, _, place in numbered)
        gold = self.place_of(_GOLD)
        return (places, False) if gold is None else ((gold, *places), True)

    def missing(self, setting: str, usual: Sequence[str]) -> UserError:
        """The error for a column that is not there."""
        named = getattr(self.settings, setting)
        wanted = [named] if isinstance(named, str) and named else usual
        return UserError(
            f"{self.settings.place} has no column {' or '.join(map(repr, wanted))}, found "
            f"{', '.join(self.names)[:200]}; set {setting} to the one you mean"
        )


def _has_header(rows: Sequence[Sequence[Any]], label_column: str) -> bool:
    """Whether the label of the first row, by the number of its column, is a word of its own."""
    if not label_column or int(label_column) > len(rows[0]):
        return False
    labels = [str(row[int(label_column) - 1]).strip() for row in rows]
    return len(rows) > 1 and labels[0] not in labels[1:] and not _is_number(labels[0])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _of_pairs(header: _Header, first_row: int, rows: Sequence[Sequence[Any]]) -> Columns:
    """Two texts that belong together, or as much so as their label says, where there is one."""
    pair = header.pair() or ()
    text = header.find("text_column", pair[:1])
    second = header.find("second_text_column", pair[1:])
    if text is None:
        raise header.missing("text_column", [first for first, _ in _PAIRS])
    if second is None:
        raise header.missing("second_text_column", [other for _, other in _PAIRS])
    label = header.optional("label_column", _LABELS)
    group = header.optional("group_column")
    if label is not None and {header.lowered[text], header.lowered[second]} == set(_INFERENCE):
        # Of a premise and a hypothesis 0 is the number of a class, and entailment in many files.
        labels = {str(row[label]).strip() for row in rows[first_row:]}
        if labels and labels <= {"-1", "0", "1", "2"}:
            raise UserError(
                f"the labels of {header.settings.place} are numbers ({', '.join(sorted(labels))}) "
                "but no similarities; write the names entailment, neutral and contradiction, or "
                "give the dataset that knows them"
            )
    other = header.place_of(*_OTHERS)
    return Columns(text, label, second=second, group=group, other=other, first_row=first_row)


def _of_two(rows: Sequence[Sequence[Any]]) -> Columns:
    values = [Counter(str(row[column]) for row in rows) for column in (0, 1)]
    label = 0 if len(values[0]) <= len(values[1]) else 1
    # A first row whose label occurs nowhere else is a header.
    is_header = len(rows) > 1 and values[label][str(rows[0][label])] == 1
    return Columns(1 - label, label, first_row=int(is_header), is_taken_for_header=is_header)
