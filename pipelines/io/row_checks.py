"""Rows of delimited text that are none, or not whole: headers, quotes, and rows within a cell."""

import re
from collections.abc import Sequence
from typing import Final

from pipelines.errors import UserError

# Of a text and its label, as data sets call them: a row of these is another file's header.
_NAMES_OF_TEXTS: Final = frozenset({
    "body", "comment", "content", "description", "document", "message", "premise", "question",
    "review", "sentence", "sentence1", "text", "title", "tweet",
})  # fmt: skip
_NAMES_OF_LABELS: Final = frozenset({
    "category", "class", "intent", "label", "labels", "polarity", "rating", "score", "sentiment",
    "similarity", "stars", "tag", "tags", "target", "topic",
})  # fmt: skip
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
_FEW_VALUES, _LONGEST_CLASS = 1000, 100  # of a column of classes


def names_columns(cells: Sequence[str], columns: Sequence[str]) -> bool:
    """Whether a row is `columns` once more, in any order, or names a text and a label as usual."""
    names = [cell.strip() for cell in cells]
    folded = {name.casefold() for name in names}
    are_usual = bool(folded & _NAMES_OF_TEXTS and folded & _NAMES_OF_LABELS)
    return are_usual or sorted(names) == sorted(columns)


def check_quotes(
    cells: Sequence[str], raw: Sequence[str], delimiter: str, quoted: bool, place: str
) -> None:
    """Raise UserError for quotes around a cell that stay part of it."""
    enclosed = [
        cell for cell in cells if len(cell) > 1 and cell.strip()[:1] == cell.strip()[-1:] == '"'
    ]
    if not enclosed:
        return
    if not quoted:
        # A text may begin and end with quotes; those within a cell that is enclosed come in twos.
        if len(enclosed) == len(cells) > 1 or any(
            '""' in cell[1:-1] and '"' not in cell[1:-1].replace('""', "") for cell in enclosed
        ):
            raise UserError(
                f"{place} has quotes around {enclosed[0][:40]}, which are ordinary characters "
                "between tabs; rename the file to .csv and set `delimiter` to a tab"
            )
        return
    # A cell that is enclosed as a whole may begin with a blank, too: `" ""a"""`.
    parted = [cell for cell in enclosed if cell[0].isspace()]
    if parted and re.search(rf'(^|{re.escape(delimiter)})[^\S\r\n]+"', "".join(raw)):
        raise UserError(
            f"{place} has a blank before the quotes of {parted[0].strip()[:40]}, which become "
            "part of the text; remove the blanks before quotes"
        )


class SwallowedRows:
    """Lines within a cell that a stray quote, closed by a later one, made part of it.

    They look like rows: they have as many columns, and in another column than that cell's a value
    that other rows repeat, or, behind it, a number where all rows have one (before it, that is a
    numbered list). Of the cell's first line the columns before it are its own row's, and of its
    last line those behind it.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        self._num_rows = 0
        self._values: dict[int, set[str]] = {}  # by column, of those that have few
        self._others: set[int] = set()  # columns of more than numbers
        self._lines: dict[tuple[int, str], int] = {}  # of a suspect column and value, the first
        self._numbers: dict[int, int] = {}  # of a column with a suspect number, the first

    def look(self, line: int, raw: Sequence[str], cells: Sequence[str]) -> None:
        """Take the row that begins in `line` into account."""
        self._num_rows += 1
        for place, cell in enumerate(cells):
            values = self._values.setdefault(place, set())
            if len(values) < _FEW_VALUES and len(cell) <= _LONGEST_CLASS:
                values.add(cell)
            if place not in self._others and not _NUMBER.fullmatch(cell):
                self._others.add(place)
        if len(raw) == 1:
            return
        inside = next((place for place, cell in enumerate(cells) if "\n" in cell), 0)
        for number, text in enumerate(raw):
            parts = text.rstrip("\r\n").split(self._delimiter)
            first = inside + 1 if number == 0 else 0
            end = inside if number == len(raw) - 1 else len(parts)
            if len(parts) != len(cells):
                continue
            for place in range(first, end):
                is_class = 0 < len(parts[place]) <= _LONGEST_CLASS
                if place != inside and is_class and len(self._values[place]) < _FEW_VALUES:
                    self._lines.setdefault((place, parts[place]), line)
                if place > inside and _NUMBER.fullmatch(parts[place]):
                    self._numbers.setdefault(place, line)

    def check(self, path: str) -> None:
        """Raise UserError where a cell holds lines that look like rows of the file."""
        suspects = [line for place, line in self._numbers.items() if place not in self._others]
        for (place, value), line in self._lines.items():
            values = self._values[place]
            is_repeated = len(values) <= min(_FEW_VALUES - 1, self._num_rows / 2)
            if is_repeated and value in values:
                suspects.append(line)
        if suspects:
            raise UserError(
                f"the row that begins in line {min(suspects):,} of {path} has other rows within "
                "its quotes; correct the quotes, or write JSON lines"
            )
