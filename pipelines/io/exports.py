"""Labelled data in the JSON of those who made it: SQuAD's questions, Label Studio's tasks."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from pipelines.errors import UserError
from pipelines.io.files import open_text
from pipelines.io.tables import check_column, object_of_pairs, without_lone_surrogates


def squad_questions(path: str, encoding: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of each question of SQuAD's JSON the title of its article, and its fields with its `context`.

    Raises UserError for a file of another structure.
    """
    try:
        with open_text(path, encoding) as text:
            whole = json.load(text, object_pairs_hook=object_of_pairs)
        articles = without_lone_surrogates(whole)["data"]
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


def label_studio_tasks(
    path: str, encoding: str, text_column: str, label_column: str
) -> Iterator[tuple[Any, Any]]:
    """Of each task in an export of Label Studio (JSON, or JSON-MIN) its text and its spans.

    The columns are a field of the data and a control; empty: `text`, and `label` of JSON-MIN or
    every control of JSON. Raises UserError for a file without them or of another structure, and
    for a task with several annotations.
    """
    text_field, control, number = text_column or "text", label_column, 0
    names = set[tuple[Any, Any]]()
    tasks: list[tuple[dict[str, Any], dict[str, Any]]] = []  # their fields, their spans by control
    try:
        with open_text(path, encoding) as stream:
            exported = without_lone_surrogates(json.load(stream, object_pairs_hook=object_of_pairs))
        for number, task in enumerate(exported, start=1):
            if isinstance(task.get("data"), dict):
                place = f"task {number:,} of {path}"
                tasks.append((task["data"], _spans_by_control(task, label_column, place)))
            else:  # JSON-MIN, which has a row for each annotation
                name = (task.get("id"), task.get(text_field))
                if name in names and name[0] is not None:
                    raise UserError(
                        f"{path} has the task {name[0]} twice, as of two annotations; keep one of "
                        "each task"
                    )
                names.add(name)
                tasks.append((task, task))
                control = label_column or "label"
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{path} does not have Label Studio's structure ({type(error).__name__}: {error}, task "
            f"{number:,}); export it again as JSON, or give JSONL with text and spans"
        ) from error
    if not tasks:
        return
    all_fields, all_controls = (dict.fromkeys(chain(*side)) for side in zip(*tasks, strict=True))
    check_column(text_field, [*all_fields], path, "text_column (--text-column)")
    if control and all_controls:  # none where no text has a span
        check_column(control, [*all_controls], path, "label_column (--label-column)")
    for fields, spans in tasks:
        every = spans.get(control, []) if control else [*chain(*spans.values())]
        yield fields.get(text_field), every


def _spans_by_control(
    task: dict[str, Any], label_column: str, place: str
) -> dict[str, list[dict[str, Any]]]:
    """The labelled spans of a task's one annotation, by the control that they were made with.

    Raises UserError for several annotations, and for spans of another kind of text, of which those
    of other controls than `label_column` are left out if it is given.
    """
    kept = [each for each in task["annotations"] if not each.get("was_cancelled")]
    if len(kept) != 1:
        raise UserError(f"{place} has {len(kept)} annotations; keep one of each task")
    spans: dict[str, list[dict[str, Any]]] = {}
    for result in kept[0]["result"]:
        kind, control = result["type"], result.get("from_name", "")
        if not kind.endswith("labels"):
            continue
        if kind == "labels":
            spans.setdefault(control, []).append(result["value"])
        elif label_column in ("", control):
            raise UserError(
                f"{place} has {kind}, whose places are not those of a plain text; label plain texts"
            )
    return spans
