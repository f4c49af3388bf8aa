"""SQuAD's JSON (v1.1 and v2.0): articles, paragraphs, questions with answers where they stand."""

import json
from collections.abc import Iterator
from typing import Any, Final

from pipelines.core.errors import UserError
from pipelines.core.reading.records import without_lone_surrogates
from pipelines.stages.labelled.records import Record, opened

# What a structure other than SQuAD's raises where it is read as one.
NO_SQUAD: Final = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


def squad_records(path: str) -> Iterator[Record]:
    """The questions of a file, in order; of a data set's article none is parted from the others.

    Raises UserError for a file of another structure.
    """
    with opened(path) as stream:
        raw = stream.read()
    try:
        articles = without_lone_surrogates(json.loads(raw.decode("utf-8-sig")))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    yield record_of(question, paragraph["context"], str(article.get("title") or ""))
    except (*NO_SQUAD, RecursionError) as error:
        raise UserError(
            f"{path} must be of SQuAD's structure (data, paragraphs, context, qas), but it is not "
            f"({type(error).__name__}: {error}); fetch it again, or give JSONL with question, "
            "context and answers"
        ) from error


def record_of(question: dict[str, Any], context: Any, group: str) -> Record:
    """A question as SQuAD and the data set of the same name write it, without its context.

    Texts are whatever stands in their place: the family refuses what is none.
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
