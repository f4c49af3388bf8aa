"""What no cell of labelled items may hold: faults of spreadsheets, broken or invisible letters."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipelines.errors import UserError
from pipelines.io.tables import is_shown
from pipelines.tasks import BadItemError, TaskFamily

# Faults of spreadsheets, in the languages that they have, and NULL in dumps of databases.
_NO_VALUE: Final = re.compile(
    r"#N/?[ADV]|#Н/Д|#[^\W\d_]+(/0)?[!?]|#[¡¿][^\W\d_]+(/0)?[!?]|Loading\.\.\.|\\N"
)
# Of several labels or choices these alone: others may be hashtags.
_FAULTS: Final = frozenset({"#N/A", "#DIV/0!", "#REF!", "#VALUE!", "#NAME?", "#NUM!", "\\N"})
_BROKEN_LETTERS: Final = {
    re.compile(r"\A[\s.,!?\ufffd]*[?\ufffd]{2}[\s.,!?\ufffd]*\Z"): "are question marks",
    # UTF-8 that was read as Latin-1 or cp1252.
    re.compile(
        r"[ÂÃÐÑ][\u0080-\u00bf\u0152-\u0192\u02c6\u02dc\u2013-\u2122]|â€"
    ): "were encoded twice",
    re.compile(r"(\\u[0-9a-fA-F]{4}){2}|(\\x[0-9a-fA-F]{2}){2}"): "have letters as escapes",
    # No language of these letters has words of them alone.
    re.compile(r"\b[\u00c0-\u00ff]{5,}\b"): "are of another encoding than was named",
}
_WRITTEN_OUT: Final = re.compile(
    r"""b?'.*'|b?".*"|“.*”|‘.*’|«.*»|`.*`|\[\s*(['"]).*\1\s*\]|\{\s*['"].*\}""", re.DOTALL
)


def check_cells(fields: Mapping[str, Any], family: TaskFamily) -> None:
    """Raise BadItemError for a cell that shows nothing, or holds a fault in place of a value."""
    text = fields.get("text")
    if family.form != "rows" and isinstance(text, str) and not _is_visible(text):
        raise BadItemError("have a text", "none")
    for name, value in fields.items():
        is_list = isinstance(value, list) and name in ("labels", "choices")
        cells = [each for each in (value if is_list else [value]) if isinstance(each, str)]
        faults = [cell for cell in cells if (cell in _FAULTS if is_list else _is_fault(cell))]
        if faults and not (is_list and len(faults) == len(cells) > 1):  # a quiz of spreadsheets
            raise BadItemError("have values in its cells", faults[0])
        for cell in cells:
            # Characters that nobody sees would be a class or a text of their own.
            if family.form != "rows" and cell.strip() and not _is_visible(cell):
                raise BadItemError(f"have visible characters in its {name}", ascii(cell))


def check_texts(every: Sequence[Any], path: str) -> None:
    """Raise UserError where many texts have other letters than were meant, or all are written out.

    That is in quotes, or as Python and JSON write a value.
    """
    texts = [text for text in every if isinstance(text, str)]
    for broken, reason in _BROKEN_LETTERS.items():
        faults = [match for text in texts if (match := broken.search(text))]
        if len(faults) > max(1, len(texts) / 10):
            begin = max(0, faults[0].start() - 20)
            raise UserError(
                f"{len(faults):,} of {len(texts):,} texts of {path} {reason}, such as "
                f"{faults[0].string[begin : begin + 40]!r}; write the file again, in UTF-8"
            )
    if len(texts) > 1 and all(map(_WRITTEN_OUT.fullmatch, texts)):
        raise UserError(
            f"every text of {path} stands in quotes or is a value of a program "
            f"({texts[0][:40]!r}); write the texts alone"
        )


def _is_fault(cell: str) -> bool:
    """Whether a spreadsheet or a dump wrote this in place of a value; a hashtag is none."""
    return bool(_NO_VALUE.fullmatch(cell)) and (not cell.startswith("#") or cell.isupper())


def _is_visible(text: str) -> bool:
    """Whether there is more than white space and invisible marks."""
    return any(is_shown(letter) for letter in text)
