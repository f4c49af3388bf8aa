"""What a model is asked of a table, or of texts that a person gives."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipelines.core.errors import UserError
from pipelines.inference.tables import FileTable, Table, format_of
from pipelines.stages.corpus.cleaning.tally import Tally
from pipelines.stages.labelled.cells import is_nothing, words_in, written_in

if TYPE_CHECKING:  # a file is read before torch is imported
    from bert_core.inference.tables import Question

_LISTS: Final = "choices"  # the column whose cells hold several texts
_WORDS: Final = "words"  # split already; they stand in place of texts
_TOKENS: Final = "tokens"  # what data sets call them, too


class Asked(NamedTuple):
    """The columns that a model is asked about, and the table beside whose columns it answers."""

    columns: Table
    own: Table
    taken: dict[str, str]  # by the question's name of a column, that of the file


def asked_of(table: FileTable, renamed: Mapping[str, str], question: "Question") -> Asked:
    """The columns of a file that the question has, as many of them as there are.

    `renamed` says under which name the file has a column; raises UserError where it has not.
    """
    wanted = (*question.columns, *question.optional)
    found, path = table.columns, table.path
    names = {name: renamed.get(name, name) for name in wanted}
    if _WORDS in names and "text" in renamed:
        del names[_WORDS]  # one column was named: that one is asked
    elif _WORDS in names and _WORDS not in found and _TOKENS in found:
        names[_WORDS] = _TOKENS
    taken = {name: theirs for name, theirs in names.items() if theirs in found}
    missing = next((names[name] for name in renamed if name in names and name not in taken), None)
    if missing is not None:
        raise UserError(
            f"{path} has no column {missing!r}, found {', '.join(found)[:200]}; name another one"
        )
    asked = {name: found[theirs] for name, theirs in taken.items()}
    is_text = format_of(path) in ("csv", "tsv")
    if _LISTS in asked and is_text:
        asked[_LISTS] = [_list_in(cell, path) for cell in asked[_LISTS]]
    return Asked(_with_words(asked, is_text) if _WORDS in wanted else asked, found, taken)


def asked_of_file(
    table: FileTable,
    question: "Question",
    text_column: str | None = None,
    second_text_column: str | None = None,
) -> Asked:
    """Likewise, with the columns that a person names for the first and the second text.

    Raises UserError where there is nothing to ask.
    """
    names = [*question.columns, *(name for name in question.optional if name != question.in_place)]
    given = (text_column, second_text_column)
    renamed = {name: theirs for name, theirs in zip(names, given, strict=False) if theirs}
    if second_text_column and len(names) < 2:
        raise UserError("this model reads one text; leave out --second-text-column")
    asked = asked_of(table, renamed, question)
    if not any(asked.columns.values()):
        raise UserError(
            f"{table.path} has no column {' or '.join((*question.columns, *question.optional))} "
            f"with something in it, found {', '.join(table.columns)[:200] or 'none'}; name its "
            "columns"
        )
    return asked if format_of(table.path) != "texts" else asked._replace(taken={})


def asked_of_texts(question: "Question", texts: Sequence[str]) -> Asked:
    """What arguments ask: a text each, or one text and what goes with it."""
    return _asked_of_rows(question, [[t] for t in texts] if len(question.columns) == 1 else [texts])


def asked_of_lines(question: "Question", lines: Sequence[str]) -> Asked:
    """What lines ask: a text each, or a text and what goes with it, with tabs between them."""
    most_tabs = -1 if _ends_with_list(question) else len(question.columns) - 1
    return _asked_of_rows(question, [line.split("\t", most_tabs) for line in lines])


def _ends_with_list(question: "Question") -> bool:
    """Whether several texts go with the first one: choices."""
    return isinstance(question.example.get(question.columns[-1]), list)


def _asked_of_rows(question: "Question", rows: Sequence[Sequence[str]]) -> Asked:
    """Each row has a text for each column; where the last one holds lists, two or more for it."""
    *firsts, last = question.columns
    is_list = _ends_with_list(question)
    for row in rows:
        if len(row) < len(firsts) + 2 if is_list else len(row) != len(firsts) + 1:
            wanted = [
                *(f"a {name}" for name in firsts),
                f"{'two or more' if is_list else 'a'} {last}",
            ]
            raise UserError(
                f"this model needs {' and '.join(wanted)}, found {', '.join(row)!r:.80}; give them "
                "as arguments, in a line with tabs between them, or in a table with --file"
            )
    columns: Table = {name: [row[place] for row in rows] for place, name in enumerate(firsts)}
    rest = [list(row[len(firsts) :]) for row in rows]
    columns[last] = [texts if is_list else texts[0] for texts in rest]
    return Asked(columns, columns, {})


def _with_words(asked: Table, is_text: bool) -> Table:
    """Words that are split already, in a column of their own; the other rows keep their text."""
    texts, words = asked.pop("text", []), asked.pop(_WORDS, [])
    texts, words = texts or [None] * len(words), words or [None] * len(texts)
    written = [_written_words(text) if is_text else text for text in texts]
    split = [
        value if isinstance(value, list) else None if is_nothing(word) else _words(word, is_text)
        for value, word in zip(written, words, strict=True)
    ]
    alone = [None if value is not None else text for value, text in zip(split, texts, strict=True)]
    if any(value is not None for value in split):
        asked = {_WORDS: split, **asked}
    if split.count(None):
        asked = {"text": alone, **asked}
    return asked


def _words(cell: Any, is_text: bool) -> list[str]:
    """A list, or a text that is parted at its white space, as a tagger's training data are."""
    return words_in(_written_words(cell) if is_text else cell, Tally())


def _written_words(cell: Any) -> Any:
    """The list that a cell writes out, where it does."""
    written = written_in(cell) if isinstance(cell, str) and cell.startswith("[") else None
    return written if isinstance(written, list) else cell


def _list_in(cell: str | None, path: str) -> list[Any] | None:
    """The list that a cell writes out, as `write_table` does; UserError where it writes none."""
    written = None if cell is None else written_in(cell)
    if cell is not None and not isinstance(written, list):
        raise UserError(
            f"choices in a cell of {path} are written as a list, such as "
            f'["one", "another"], found {cell[:60]!r}; write one, or give .jsonl or .parquet'
        )
    return written
