"""Records of labelled data, whatever their format: fields by their role, their values, their place.

By the family's form a record has

- texts: `text`, `label` or (multi-label) `labels`, and for a pair `second_text`;
- pairs: `text`, `second_text`, `label` (None where there is no such column), `other_text` (None);
- choices: `text`, `choices`, `label`;
- words: `words`, `tags`;
- questions: `id`, `question`, `context`, `answers`, `starts`;
- rows: every column by its own name.
"""

import ast
import hashlib
import io
import json
import tokenize
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pipelines.config.errors import UserError
from pipelines.io.files import format_suffix
from pipelines.io.records import dialect_of, is_nothing, opened, without_lone_surrogates
from pipelines.io.text import Tally, restored_in
from pipelines.tasks import Form

_COLUMNS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_TABLES: Final = {".csv": "delimited", ".tsv": "delimited", ".txt": "delimited", **_COLUMNS}
_TEXTS: Final = ("a CSV, TSV, JSONL or Parquet file", _TABLES)
# By form: what is read, and how by the suffix of its name.
_FORMATS: Final[dict[Form, tuple[str, dict[str, str]]]] = {
    "texts": _TEXTS,
    "pairs": _TEXTS,
    "choices": _TEXTS,
    "rows": _TEXTS,
    "words": ("a file of CoNLL's columns, JSONL or Parquet", _COLUMNS),
    "questions": ("a file of SQuAD's JSON, JSONL or Parquet", _COLUMNS | {".json": "squad"}),
}
_BLOCK_BYTES: Final = 2**20
# What a structure other than SQuAD's raises where it is read as one.
NO_SQUAD: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Record(NamedTuple):
    """One record of a file."""

    place: str  # where it is: "line 7", "question 5733"
    group: str  # what it belongs to; empty: the family says
    fields: dict[str, Any]


def format_of(path: str, form: Form) -> str:
    """`delimited`, `jsonl`, `parquet`, `conll` or `squad`, by form and suffix.

    Raises UserError for a suffix that the form is not read from.
    """
    wanted, by_suffix = _FORMATS[form]
    if not path:
        raise UserError(f"dataset.source.path is empty; name {wanted}")
    found = by_suffix.get(format_suffix(path), "conll" if form == "words" else "")
    if not found:
        raise UserError(
            f"{path} is not {wanted} by its name; name a file that ends in "
            f"{', '.join(by_suffix)}, or one of these compressed"
        )
    return found


def name_of_file(path: str, form: Form) -> dict[str, str]:
    """What decides the records of a file: its bytes, decompressed, and how they are parsed.

    Raises UserError where it is not there, not readable or of an unknown format.
    """
    parsing = format_of(path, form)
    if parsing == "delimited":
        dialect = dialect_of(path)
        parsing = f"delimiter {dialect.delimiter!r}, quotes {'enclose' if dialect.quoted else ''}"
    digest = hashlib.sha256()
    with opened(path) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return {"file": digest.hexdigest(), "format": parsing}


def squad_records(path: str) -> Iterator[Record]:
    """The questions of a file, in order; of a dataset's article none is parted from the others.

    Raises UserError for a file of another structure.
    """
    with opened(path) as stream:
        raw = stream.read()
    try:
        articles = without_lone_surrogates(json.loads(raw.decode("utf-8-sig")))["data"]
        for article in articles:
            title = str(article.get("title") or "")
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield squad_record(question, paragraph["context"], title)
    except (*NO_SQUAD, RecursionError) as error:
        raise UserError(
            f"{path} does not have SQuAD's structure of data, paragraphs, context and qas "
            f"({type(error).__name__}: {error}); fetch it again, or give JSONL with question, "
            "context and answers"
        ) from error


def squad_record(question: dict[str, Any], context: Any, group: str) -> Record:
    """A question as SQuAD and the dataset of the same name write it, without its context.

    Texts are whatever is in their place: the family refuses what is none.
    """
    answers = question.get("answers") or []
    if isinstance(answers, dict):  # of columns, as `datasets` has it
        answers = [
            {"text": text, "answer_start": start}
            for text, start in zip(answers["text"], answers["answer_start"], strict=True)
        ]
    if question.get("is_impossible"):
        answers = []
    name = str(question.get("id", ""))
    return Record(
        f"question {name}" if name else f"question {question['question']!r}",
        group,
        {
            "id": name,
            "question": question["question"],
            "context": context,
            "answers": [answer["text"] for answer in answers],
            "starts": [int(answer["answer_start"]) for answer in answers],
        },
    )


_NOTHING: Final = ("nan", "<na>")  # in tables of text: a cell without a value


def text_in(value: Any, tally: Tally) -> str:
    """A value as the text of a CSV file; nothing and NaN are empty."""
    if is_nothing(value):
        return ""
    return str(restored_in(value, tally.repaired)).strip()


def cell_in(value: Any, tally: Tally) -> Any:
    """As `text_in`; a list or a table stays as it is, for the family to refuse."""
    return value if isinstance(value, list | dict) else text_in(value, tally)


def words_in(value: Any, tally: Tally) -> list[str]:
    """A list of texts; a text is parted at its white space."""
    return [text_in(each, tally) for each in _parted(value, tally)]


def tags_in(value: Any, tally: Tally) -> list[Any]:
    """As `words_in`; what is no text stays as it is, for the family to refuse."""
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
        found = [text_in(each, tally) if isinstance(each, str | bytes) else each for each in value]
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
    value = restored_in(value, tally.repaired)
    if isinstance(value, str):
        return value.split()
    if is_nothing(value):
        return []
    return value if isinstance(value, list) else [value]
