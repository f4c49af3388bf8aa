"""Multiple choice in the formats people have."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.config.errors import UserError
from tests.pipelines.tasks.labelled_lines import items, written


def test_choices_stand_in_columns_or_in_a_list(tmp_path: Path) -> None:
    header = "sent1,sent2,ending0,ending1,label"
    path = written(tmp_path / "a.csv", f"{header}\nShe waits.,She,sings.,runs.,1\n")
    assert items(path, "multiple_choice") == [
        {"text": "She waits.", "choices": ["She sings.", "She runs."], "answer": 1}
    ]
    line = {"question": "Where?", "choices": {"label": ["A", "B"], "text": ["here", "there"]},
            "answerKey": "B"}  # fmt: skip
    path = written(tmp_path / "b.jsonl", json.dumps(line))
    assert items(path, "multiple_choice")[0]["answer"] == 1
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"prompt": ["x"], "choices": [["a", "b", "c"]], "label": [2]}), path)
    assert items(path, "multiple_choice")[0] == {
        "text": "x", "choices": ["a", "b", "c"], "answer": 2,
    }  # fmt: skip


@pytest.mark.parametrize("cell", [
    '["here", "there, or so"]', "['here', 'there, or so']",
    "{'label': ['A', 'B'], 'text': ['here', 'there, or so']}",
    '[{"label": "A", "text": "here"}, {"label": "B", "text": "there, or so"}]',
])  # fmt: skip
def test_choices_stand_in_one_cell_of_a_table_of_text(tmp_path: Path, cell: str) -> None:
    quoted = cell.replace('"', '""')
    path = written(tmp_path / "a.csv", f'question,choices,answer\nWhere?,"{quoted}",B\n')
    assert items(path, "multiple_choice") == [
        {"text": "Where?", "choices": ["here", "there, or so"], "answer": 1}
    ]


@pytest.mark.parametrize("cell", ["here or there", "['here' 'there']", "['here', 'the"])
def test_a_cell_that_is_no_list_of_choices_is_refused_with_its_line(
    tmp_path: Path, cell: str
) -> None:
    path = written(tmp_path / "a.csv", f'question,choices,answer\nWhere?,"{cell}",0\n')
    with pytest.raises(UserError, match="line 2"):
        items(path, "multiple_choice")


def choice_of(tmp_path: Path, **line: Any) -> int:
    path = written(tmp_path / "choice.jsonl", json.dumps({"question": "What?", **line}))
    answer: int = items(path, "multiple_choice")[0]["answer"]
    return answer


NUMBERS = ["8", "2", "24", "120"]


def test_an_answer_that_is_a_number_is_an_index(tmp_path: Path) -> None:
    assert choice_of(tmp_path, choices=NUMBERS, answer=2) == 2
    assert choice_of(tmp_path, choices=NUMBERS, answer=0.0) == 0
    assert choice_of(tmp_path, choices=NUMBERS, answer="24") == 2
    assert choice_of(tmp_path, choices=NUMBERS, answer="c") == 2
    for wrong in (4, -1):
        with pytest.raises(UserError, match=f"have a choice's index from 0.*'{wrong}' for 4"):
            choice_of(tmp_path, choices=NUMBERS, answer=wrong)


def test_an_answer_goes_by_the_names_of_the_choices(tmp_path: Path) -> None:
    for names, answer in ((list("BCAD"), "C"), (list("2314"), "3"), (list("2314"), 3)):
        table = {"text": NUMBERS, "label": names}
        assert choice_of(tmp_path, choices=table, answerKey=answer) == 1
    rows = [{"label": name, "text": text} for name, text in zip("BA", NUMBERS, strict=False)]
    assert choice_of(tmp_path, choices=rows, answerKey="A") == 1
    with pytest.raises(UserError, match="have a choice's index from 0"):
        choice_of(tmp_path, choices={"text": NUMBERS, "label": list("ABCD")}, answerKey="E")


def test_an_answer_that_can_be_two_choices_is_refused_with_its_line(tmp_path: Path) -> None:
    rows = "\n".join(["x,A,8,2,24", "y,2,8,2,24"])
    path = written(tmp_path / "a.csv", f"question,answer,choice1,choice2,choice3\n{rows}\n")
    message = "found '2', the text of '2' and the index from 0 of '24', in line 3"
    with pytest.raises(UserError, match=message):
        items(path, "multiple_choice")
    assert [item["answer"] for item in items(path, "multiple_choice", bad_items="skip")] == [0]


def test_labels_that_all_are_indices_are_no_texts(tmp_path: Path) -> None:
    rows = "\n".join(["x,0,8,2,24", "y,2,8,2,24"])
    path = written(tmp_path / "a.csv", f"question,answer,choice1,choice2,choice3\n{rows}\n")
    assert [item["answer"] for item in items(path, "multiple_choice")] == [0, 2]


def test_choices_without_a_text_move_no_index(tmp_path: Path) -> None:
    assert choice_of(tmp_path, choices=["a", "b", ""], answer=1) == 1
    with pytest.raises(UserError, match="have a text in each of its choices"):
        choice_of(tmp_path, choices=["", "a", "b"], answer=1)


def test_what_a_question_is_about_follows_it(tmp_path: Path) -> None:
    line = {"article": "It rained.", "question": "Wet?", "options": ["yes", "no"], "answer": "A"}
    path = written(tmp_path / "race.jsonl", json.dumps(line))
    assert items(path, "multiple_choice")[0]["text"] == "Wet? It rained."
    header = "id,context,question,answer0,answer1,label"
    path = written(tmp_path / "cosmos.csv", f"{header}\n1,It rained.,Wet?,yes,no,0\n")
    assert items(path, "multiple_choice") == [
        {"text": "Wet? It rained.", "choices": ["yes", "no"], "answer": 0}
    ]
    named = {"text_column": "context", "second_text_column": "question"}
    assert items(path, "multiple_choice", **named)[0]["text"] == "It rained. Wet?"
    with pytest.raises(UserError, match="'nowhere'"):
        items(path, "multiple_choice", second_text_column="nowhere")


def test_choices_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"choice{number}" for number in range(1, 12)]
    row = ",".join(names)
    path = written(tmp_path / "a.csv", f"question,{row},label\nWhich?,{row},9\n")
    (item,) = items(path, "multiple_choice")
    assert item["choices"] == names
    assert item["choices"][item["answer"]] == "choice10"


def test_a_right_answer_that_is_empty_makes_no_other_right(tmp_path: Path) -> None:
    header = "sent1,gold-ending,distractor-0,distractor-1"
    path = written(tmp_path / "a.csv", f"{header}\nShe waits.,,runs.,sings.\n")
    with pytest.raises(UserError, match="have a text in each of its choices"):
        items(path, "multiple_choice")
