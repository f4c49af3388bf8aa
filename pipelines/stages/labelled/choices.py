"""Questions of multiple choice in tables: the choices, and which of them the answer names."""

from collections.abc import Sequence
from typing import Any

from pipelines.core.reading.text import Tally
from pipelines.stages.labelled.cells import text_in, written_in
from pipelines.stages.labelled.columns import Columns
from pipelines.stages.labelled.records import Record


def choice_fields(cells: list[Any], columns: Columns, tally: Tally) -> dict[str, Any]:
    """The question, its choices, what they are called where the table says so, and the label.

    What a question is about follows it, so that it loses its end where both are too long. A label
    that is a number stays one: it is an index. Without a label column the first is right.
    """
    texts, names = _told([cells[place] for place in columns.choices], tally)
    if columns.label is None:
        texts = [texts[0], *(text for text in texts[1:] if text)]
    text = text_in(cells[columns.text], tally)
    if columns.second is not None:
        text = f"{text} {text_in(cells[columns.second], tally)}".strip()
    while texts and not texts[-1]:  # as many columns as the question of most choices needs
        texts.pop()
        names = names[: len(texts)]
    start = "" if columns.start is None else text_in(cells[columns.start], tally) + " "
    return {
        "text": text,
        "choices": [f"{start}{text}" if text else "" for text in texts],
        "names": names,
        "label": 0 if columns.label is None else _label(cells[columns.label], tally),
    }


def with_indices(questions: Sequence[Record]) -> Sequence[Record]:
    """The same questions; labels that all are indices, written as texts, become numbers.

    So no index is taken for a choice that is a number itself.
    """
    labels = [question.fields["label"] for question in questions]
    are_indices = all(
        label.isdecimal() and int(label) < len(question.fields["choices"])
        for label, question in zip(labels, questions, strict=True)
        if isinstance(label, str) and label
    )
    if are_indices:
        for label, question in zip(labels, questions, strict=True):
            question.fields["label"] = label if label == "" else int(label)
    return questions


def _told(found: list[Any], tally: Tally) -> tuple[list[str], list[str]]:
    """Texts and names of the choices: of columns of texts, a list, or a table of both, which a
    cell of text writes out."""
    whole = found[0] if len(found) == 1 else found
    if isinstance(whole, str):
        whole = written_in(whole) or whole
    if isinstance(whole, dict):  # of columns, as `datasets` has it
        texts, names = _listed(whole.get("text")), _listed(whole.get("label"))
    elif isinstance(whole, list) and all(isinstance(each, dict) for each in whole):
        texts = [each.get("text") for each in whole]
        names = [each["label"] for each in whole if "label" in each]
    else:
        texts, names = _listed(whole), []
    return [text_in(text, tally) for text in texts], [text_in(name, tally) for name in names]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _label(value: Any, tally: Tally) -> int | str:
    if isinstance(value, float) and value.is_integer():  # as tables with gaps hold whole numbers
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return text_in(value, tally)
