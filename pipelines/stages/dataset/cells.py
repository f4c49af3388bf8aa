"""The values of a table's cells, by what they hold: texts, words, tags, lists of labels."""

import ast
import io
import json
import math
import tokenize
from typing import Any, Final

from pipelines.io.text import Tally, restored

_NOTHING: Final = ("nan", "<na>")  # in tables of text: a cell without a value


def text_in(value: Any, tally: Tally) -> str:
    """A value as the text of a CSV file; nothing and NaN are empty."""
    if is_nothing(value):
        return ""
    return restored(str(value), tally.repaired).strip()


def is_nothing(value: Any) -> bool:
    """Whether a cell has no value: null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def words_in(value: Any, tally: Tally) -> list[str]:
    """A list of texts; a text is parted at its white space."""
    return [text_in(each, tally) for each in _parted(value, tally)]


def tags_in(value: Any, tally: Tally) -> list[Any]:
    """Likewise; what is no text stays as it is, for the family to refuse."""
    return [
        text_in(each, tally) if isinstance(each, str) or is_nothing(each) else each
        for each in _parted(value, tally)
    ]


def labels_in(value: Any, separator: str, tally: Tally) -> Any:
    """Any number of labels: a list, one in JSON's or Python's writing, or parted by `separator`.

    Null and NaN are none, in the list as well; what is no text stays as it is, and so does a text
    in brackets that is no list.
    """
    if isinstance(value, list):
        found = [text_in(each, tally) if isinstance(each, str) else each for each in value]
        return [None if is_nothing(each) else each for each in found if each != ""]
    if isinstance(value, dict):
        return value
    text = text_in(value, tally)
    if is_nothing(value) or text.lower() in _NOTHING:
        return None
    if text.startswith("[") and text.endswith("]"):
        written = written_in(text)
        return labels_in(written, separator, tally) if isinstance(written, list) else text
    return [label for part in text.split(separator) if (label := part.strip())]


def written_in(text: str) -> list[Any] | dict[str, Any] | None:
    """The list or table that a text writes out as JSON or Python do; None where it does neither."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        # Without its commas, as NumPy prints it, Python would join the texts to one.
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        if sum(token.type == tokenize.STRING for token in tokens) > _num_values(found):
            return None
    return found if isinstance(found, list | dict) else None


def _num_values(found: Any) -> int:
    if isinstance(found, dict):
        return len(found) + sum(map(_num_values, found.values()))
    return sum(map(_num_values, found)) if isinstance(found, list) else 1


def _parted(value: Any, tally: Tally) -> list[Any]:
    if isinstance(value, str):
        return restored(value, tally.repaired).split()
    if is_nothing(value):
        return []
    return value if isinstance(value, list) else [value]
