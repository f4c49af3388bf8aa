"""Labelled data in the JSON of those who made it: SQuAD's questions, Label Studio's tasks."""

import json
from collections.abc import Iterator
from typing import Any

from pipelines.errors import UserError
from pipelines.io.files import open_text
from pipelines.io.tables import without_lone_surrogates


def squad_questions(path: str, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each question of SQuAD's JSON the title of its article, and its fields with its `context`.

    Raises UserError for a file of another structure.
    """
    try:
        with open_text(path, encoding) as text:
            articles = without_lone_surrogates(json.load(text))["data"]
        for article in articles:
            title = str(article.get("title") or "")
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers", [])
                    is_impossible = question.get("is_impossible", not answers)
                    if not isinstance(is_impossible, bool) or not (is_impossible or answers):
                        raise ValueError(
                            f"the question {question['question']!r:.60} has neither an answer nor "
                            "is_impossible: true"
                        )
                    yield (
                        title,
                        {
                            **question,
                            "question": question["question"],
                            "answers": [] if is_impossible else answers,
                            "context": paragraph["context"],
                        },
                    )
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} does not have SQuAD's structure ({type(error).__name__}: {error}); fetch it "
            "again, or give JSONL with question, context and answers"
        ) from error


def label_studio_tasks(path: str, encoding: str) -> Iterator[tuple[Any, list[Any]]]:
    """Of each task in an export of Label Studio (JSON, or JSON-MIN) its text and its spans.

    Raises UserError for a file of another structure, and for a task with several annotations.
    """
    number = 0
    try:
        with open_text(path, encoding) as stream:
            tasks = without_lone_surrogates(json.load(stream))
        for number, task in enumerate(tasks, start=1):
            if "annotations" not in task:
                yield task["text"], task.get("label", [])
                continue
            kept = [each for each in task["annotations"] if not each.get("was_cancelled")]
            if len(kept) != 1:
                raise UserError(
                    f"task {number:,} of {path} has {len(kept)} annotations; keep one of each task"
                )
            results = [each for each in kept[0]["result"] if each["type"].endswith("labels")]
            if other := {each["type"] for each in results} - {"labels"}:
                raise UserError(
                    f"task {number:,} of {path} has {min(other)}, whose places are not those of a "
                    "plain text; label plain texts"
                )
            yield task["data"]["text"], [each["value"] for each in results]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} does not have Label Studio's structure ({type(error).__name__}: {error}, task "
            f"{number:,}); export it again as JSON, or give JSONL with text and spans"
        ) from error
