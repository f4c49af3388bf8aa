"""Whatever JSON value stands where a label belongs is read, or refused with its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from pipelines.tasks import FAMILIES
from tests.pipelines.tasks.labelled_lines import items, written

TEXT = "Ada met Bob in Paris"
GOOD: dict[str, dict[str, Any]] = {
    "classification": {"text": TEXT, "label": "a"},
    "multi_label": {"text": TEXT, "labels": ["a"]},
    "regression": {"text": TEXT, "label": 2.5},
    "sentence_embedding": {"text": TEXT, "second_text": "x", "label": 0.5},
    "multiple_choice": {"text": TEXT, "choices": ["x", "y"], "label": 1},
    "tagging": {"words": ["Ada", "met"], "tags": ["B-PER", "O"]},
    "question_answering": {
        "question": "who", "context": TEXT, "answers": [{"text": "Ada", "answer_start": 0}]
    },
}  # fmt: skip
# What nobody could learn from, whichever family it is.
BAD = (
    {"a": 1}, [{"a": 1}], [["a"], ["b"]], [float("nan"), "a"], ["a", 1.5], [None, "O"],
)  # fmt: skip
OF_ONE_VALUE = (float("nan"), "", ["a"])
CASES = [
    *((name, value) for name in FAMILIES for value in BAD),
    *((name, value) for name in ("classification", "regression") for value in OF_ONE_VALUE),
    ("question_answering", [{"text": "A", "answer_start": [0]}]),
    ("question_answering", [{"text": "A", "answer_start": float("inf")}]),
    ("question_answering", [{"text": "A", "answer_start": float("nan")}]),
    ("question_answering", [{"text": TEXT[:3], "answer_start": 0.7}]),
]


def label_key(record: dict[str, Any]) -> str:
    return list(record)[-1]


@pytest.mark.parametrize(("name", "value"), CASES, ids=lambda each: str(each)[:40])
def test_a_label_that_is_none_is_refused_with_its_line(
    name: str, value: Any, tmp_path: Path
) -> None:
    good = GOOD[name]
    bad = {**good, label_key(good): value}
    lines = "\n".join(json.dumps(each) for each in (good, bad, good))
    path = written(tmp_path / "a.jsonl", lines)
    with pytest.raises(UserError, match="line 2"):
        items(path, name)


@pytest.mark.parametrize("text", [float("nan"), None, ""])
@pytest.mark.parametrize(
    "name", ["classification", "regression", "multi_label", "multiple_choice", "sentence_embedding"]
)
def test_a_row_without_a_text_is_refused(name: str, text: Any, tmp_path: Path) -> None:
    good = GOOD[name]
    lines = "\n".join(json.dumps(each) for each in (good, {**good, "text": text}))
    path = written(tmp_path / "a.jsonl", lines)
    with pytest.raises(UserError, match="must have a text, found none in line 2"):
        items(path, name)
