"""Questions in the formats people have: SQuAD's JSON, lines of JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.errors import UserError
from pipelines.stages.dataset.items import LeftOut
from tests.pipelines.tasks.labelled_lines import items, written


def squad(*questions: dict[str, Any]) -> str:
    paragraph = {"context": "The cat sat. It purred.", "qas": list(questions)}
    return json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def test_questions_of_squad_with_and_without_answers(tmp_path: Path) -> None:
    answered = {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
    nobody = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    found = items(written(tmp_path / "a.json", squad(answered, nobody)), "question_answering")
    assert [(item["answers"], item["starts"]) for item in found] == [(["cat"], [4]), ([], [])]
    line = {"id": "3", "question": "Who?", "context": "The cat sat.",
            "answers": {"text": ["cat"], "answer_start": [4]}}  # fmt: skip
    found = items(written(tmp_path / "b.jsonl", json.dumps(line)), "question_answering")
    assert found[0] == {
        "id": "3", "question": "Who?", "context": "The cat sat.", "answers": ["cat"], "starts": [4],
    }  # fmt: skip


def test_answers_that_are_not_where_they_say_are_named_or_counted(tmp_path: Path) -> None:
    wrong = {"id": "7", "question": "Who?", "answers": [{"text": "cat", "answer_start": 5}]}
    right = {"id": "8", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
    path = written(tmp_path / "a.json", squad(wrong, right))
    with pytest.raises(
        UserError, match=r"found 'at ' at character 5 instead of 'cat' in question 7"
    ):
        items(path, "question_answering")
    left_out = LeftOut()
    assert len(items(path, "question_answering", left_out, bad_items="skip")) == 1
    assert left_out.places == [f"question 7 of {path}"]
    with pytest.raises(UserError, match="does not have SQuAD's structure"):
        items(written(tmp_path / "b.json", '{"data": [{}]}'), "question_answering")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": None}, "must have a context, found none in line 1"),
        ({"context": 7}, "must have a context, found 7 in line 1"),
        ({"question": None}, "must have a question, found none in line 1"),
        ({"answers": [{"text": 4, "answer_start": 4}]}, "have answers that are texts, found 4 in"),
    ],
)
def test_what_is_no_text_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    line = {"question": "Who?", "context": "The cat sat.", "answers": [], **changes}
    with pytest.raises(UserError, match=message):
        items(written(tmp_path / "a.jsonl", json.dumps(line)), "question_answering")
    context, question = line.pop("context"), {"id": "1", **line}
    article = {"title": None, "paragraphs": [{"context": context, "qas": [question]}]}
    path = written(tmp_path / "a.json", json.dumps({"data": [article]}))
    with pytest.raises(UserError, match=message.replace("line 1", "question 1")):
        items(path, "question_answering")


def test_a_context_keeps_its_characters_where_they_are(tmp_path: Path) -> None:
    line = {"question": "Who?", "context": "  The caf\xe9.", "answers": {"text": ["caf\xe9"],
            "answer_start": [6]}}  # fmt: skip
    (tmp_path / "a.jsonl").write_bytes(json.dumps(line, ensure_ascii=False).encode("cp1252"))
    found = items(tmp_path / "a.jsonl", "question_answering")[0]
    assert (found["context"], found["answers"]) == ("  The caf\xe9.", ["caf\xe9"])
