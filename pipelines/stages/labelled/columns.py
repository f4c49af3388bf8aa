"""Which columns of a table hold what: named in the settings, or found by the names that are usual.

The names of GLUE's own files, of SWAG's and of the data sets on Hugging Face's hub are among them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.stages.labelled.settings import LabelledDataset, LabelledFile
from pipelines.tasks import Form

_TEXTS: Final = ("text", "sentence", "message", "content", "review", "document", "body")
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
_PROMPTS: Final = ("sent1", "prompt", "question", "context", "ctx", "startphrase", *_TEXTS)
_CHOICE_LISTS: Final = ("choices", "endings", "options")
_CHOICE: Final = re.compile(r"(ending|choice|option|distractor|answer)[-_ ]?(\d+)")
_PASSAGES: Final = ("context", "article", "passage")  # which a question of several choices is about
_GOLD: Final = "gold-ending"  # of SWAG's full files: the right one, before the distractors
_ANSWERS: Final = ("label", "answer", "answer_index", "answerkey", "gold", "correct", "target")
_USUAL: Final[dict[Form, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "texts": (_TEXTS, _LABELS),
    "choices": (_PROMPTS, _ANSWERS),
    "pairs": (_TEXTS, _LABELS),
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
    header = [str(cell).strip() for cell in rows[0]]
    named = {
        setting: value
        for setting in ("text_column", "second_text_column", "label_column", "group_column")
        if (value := getattr(settings, setting))
    }
    for column in settings.choice_columns:
        named[f"choice column {column}"] = column
    numbers = [value for value in named.values() if value.isdecimal()]
    if named and len(numbers) == len(named) and not set(numbers) <= set(header):
        header = [str(number) for number in range(1, len(header) + 1)]
        first_row = int(_has_header(rows, settings.label_column))
        is_taken_for_header = bool(first_row)
    else:
        first_row, is_taken_for_header = 1, False
    lowered = [cell.lower() for cell in header]
    if form == "pairs":
        return _of_pairs(settings, header, lowered, first_row, rows)
    texts, labels = _USUAL[form]
    pair = _pair_in(lowered, settings.text_column) if form == "texts" else None
    text = _found(settings.text_column, pair[:1] if pair else texts, header, lowered)
    label = _found(settings.label_column, labels, header, lowered)
    if (text is None or label is None) and not named and form == "texts" and len(header) == 2:
        return _of_two(rows)
    choices, has_gold = _choices(settings, lowered, header) if form == "choices" else ((), False)
    if text is None or (label is None and not has_gold):
        if not named:
            raise UserError(
                f"the columns of {settings.place} must be told: found "
                f"{', '.join(header)[:200]}; name them with text_column and label_column"
            )
        missing, usual = ("text_column", texts) if text is None else ("label_column", labels)
        raise _missing(settings, missing, usual, header)
    second_name = settings.second_text_column
    seconds: Sequence[str] = ("context",)
    if form == "texts":
        seconds = pair[1:] if pair else ()
    elif form == "choices":
        seconds = _PASSAGES if lowered[text] == "question" else ()
    second = _found(second_name, seconds, header, lowered)
    if second is None and (second_name or form == "questions"):
        raise _missing(settings, "second_text_column", ("context",), header)
    group = _found(settings.group_column, (), header, lowered)
    if settings.group_column and group is None:
        raise _missing(settings, "group_column", (), header)
    if form == "choices" and not choices:
        raise UserError(
            f"{settings.place} must have columns with the choices, found "
            f"{', '.join(header)[:200]}; name them with choice_columns"
        )
    return Columns(
        text=text,
        label=None if has_gold else label,
        second=None if form == "words" else second,
        group=group,
        choices=choices,
        start=lowered.index("sent2") if form == "choices" and "sent2" in lowered else None,
        is_inference=label is not None and lowered[label] == "gold_label",
        name=lowered.index("id") if form == "questions" and "id" in lowered else None,
        first_row=first_row,
        is_taken_for_header=is_taken_for_header,
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


def _found(
    named: str, usual: Sequence[str], header: Sequence[str], lowered: Sequence[str]
) -> int | None:
    if named:
        return header.index(named) if named in header else None
    return next((lowered.index(name) for name in usual if name in lowered), None)


def _pair_in(lowered: Sequence[str], first: str) -> tuple[str, str] | None:
    """The usual pair that the table has; where the first text is named, the one it begins."""
    begun = [pair for pair in _PAIRS if first.lower() in ("", pair[0])]
    return next((pair for pair in begun if set(pair) <= set(lowered)), None)


def _choices(
    settings: LabelledFile | LabelledDataset, lowered: Sequence[str], header: Sequence[str]
) -> tuple[tuple[int, ...], bool]:
    """The columns of the choices, and whether the first of them is always the right one."""
    if settings.choice_columns:
        absent = [name for name in settings.choice_columns if name not in header]
        if absent:
            raise _missing(settings, "choice_columns", absent, header)
        return tuple(header.index(name) for name in settings.choice_columns), False
    for name in _CHOICE_LISTS:
        if name in lowered:
            return (lowered.index(name),), False
    numbered = sorted(
        (found[1], int(found[2]), index)
        for index, name in enumerate(lowered)
        if (found := _CHOICE.fullmatch(name))
    )
    places = tuple(index for _, _, index in numbered)
    if _GOLD in lowered:
        return (lowered.index(_GOLD), *places), True
    return places, False


def _of_pairs(
    settings: LabelledFile | LabelledDataset,
    header: Sequence[str],
    lowered: Sequence[str],
    first_row: int,
    rows: Sequence[Sequence[Any]],
) -> Columns:
    """Two texts that belong together, or as much so as their label says, where there is one."""
    pair = _pair_in(lowered, settings.text_column) or ()
    text = _found(settings.text_column, pair[:1], header, lowered)
    second = _found(settings.second_text_column, pair[1:], header, lowered)
    if text is None:
        raise _missing(settings, "text_column", [first for first, _ in _PAIRS], header)
    if second is None:
        raise _missing(settings, "second_text_column", [other for _, other in _PAIRS], header)
    label = _found(settings.label_column, _LABELS, header, lowered)
    if settings.label_column and label is None:
        raise _missing(settings, "label_column", (), header)
    group = _found(settings.group_column, (), header, lowered)
    if settings.group_column and group is None:
        raise _missing(settings, "group_column", (), header)
    if label is not None and {lowered[text], lowered[second]} == set(_INFERENCE):
        _refuse_numbers_of_classes(settings, {str(row[label]).strip() for row in rows[first_row:]})
    other = _found("", _OTHERS, header, lowered)
    return Columns(text, label, second=second, group=group, other=other, first_row=first_row)


def _refuse_numbers_of_classes(settings: LabelledFile | LabelledDataset, labels: set[str]) -> None:
    """Of a premise and a hypothesis 0 is the number of a class, and entailment in many files."""
    if labels and labels <= {"-1", "0", "1", "2"}:
        raise UserError(
            f"the labels of {settings.place} must be the names of its classes, entailment, neutral "
            f"and contradiction, found their numbers alone ({', '.join(sorted(labels))}), which "
            "are no similarities; write the names, or give the data set that knows them"
        )


def _of_two(rows: Sequence[Sequence[Any]]) -> Columns:
    values = [Counter(str(row[column]) for row in rows) for column in (0, 1)]
    label = 0 if len(values[0]) <= len(values[1]) else 1
    # A first row whose label occurs nowhere else is a header.
    is_header = len(rows) > 1 and values[label][str(rows[0][label])] == 1
    return Columns(1 - label, label, first_row=int(is_header), is_taken_for_header=is_header)


def _missing(
    settings: LabelledFile | LabelledDataset,
    setting: str,
    usual: Sequence[str],
    header: Sequence[str],
) -> UserError:
    wanted = getattr(settings, setting)
    candidates = [wanted] if isinstance(wanted, str) and wanted else list(usual)
    return UserError(
        f"{settings.place} must have a column {' or '.join(repr(name) for name in candidates)}, "
        f"found {', '.join(header)[:200]}; set {setting} to the one you mean"
    )
