"""Labelled data in the formats people have: GLUE's files, CoNLL's columns, SQuAD's JSON, SWAG's."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.core.errors import UserError
from pipelines.stages.labelled.files import LeftOut, read_labelled_file
from pipelines.stages.labelled.settings import LabelledFile
from pipelines.tasks import family

DATA = Path("../shared/data")


def items(path: Path, name: str, left_out: LeftOut | None = None, **settings: Any) -> list[dict]:
    source = LabelledFile(path=str(path), **settings)
    found = read_labelled_file(str(path), family(name), source, left_out or LeftOut())
    return [each.item for each in found]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def real(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not on this machine")
    return DATA / name


def test_pairs_are_found_by_their_usual_names(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "id\tpremise\thypothesis\tlabel\n1\tx y\tz\tneutral\n")
    assert items(path, "classification") == [
        {"text": "x y", "second_text": "z", "label": "neutral"}
    ]
    path = written(tmp_path / "b.tsv", "question\tsentence\tlabel\nq\ts\tentailment\n")
    assert items(path, "classification")[0]["second_text"] == "s"


def test_the_second_text_comes_with_the_first_one_where_that_is_named(tmp_path: Path) -> None:
    rows = "question,sentence1,sentence2,hypothesis,premise,label\nq,a,b,h,p,x\n"
    path = written(tmp_path / "a.csv", rows)
    for named, second in (("", "b"), ("sentence1", "b"), ("premise", "h"), ("question", None)):
        found = items(path, "classification", text_column=named)
        assert found[0]["second_text"] == second
    path = written(tmp_path / "b.csv", "text,second_text,label\na,b,x\n")
    assert items(path, "classification")[0]["second_text"] == "b"


def test_columns_of_a_file_without_a_header_are_numbered(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tsv", "gj04\t1\t\tIt sails.\nks08\t0\t*\tIt the.\n")
    found = items(path, "classification", text_column="4", label_column="2")
    assert found == [
        {"text": "It sails.", "second_text": None, "label": "1"},
        {"text": "It the.", "second_text": None, "label": "0"},
    ]


@pytest.mark.parametrize("cell", ["['joy', 'anger']", '["joy", "anger"]'])
def test_a_list_that_is_written_out_is_a_list_of_labels(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "a.tsv"
    written(path, f"text\tlabels\nx\t{cell}\ny\t[]\n")
    assert [item["labels"] for item in items(path, "multi_label")] == [["anger", "joy"], []]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.0, 1.0, 0.0], r"not a row of zeros and ones, found \[0.0, 1.0, 0.0\] in line 2"),
        ([0, 1], "not a row of zeros and ones"),
        ([1, 0, 0, 1], "not a row of zeros and ones"),
        ([True, False], "not a row of zeros and ones"),
        ("[0, 0, 1]", "not a row of zeros and ones"),
        (["a", None], r"have a name for each of its labels, found \['a', None\] in line 2"),
        (None, "have its labels, or an empty list where there are none, found none in line 2"),
        ("nan", "have its labels, or an empty list"),
        ("['a' 'b']", "have its labels in a list or between separators"),
        ("[a, b]", "have its labels in a list or between separators"),
    ],
)
def test_labels_that_have_no_names_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    lines = [json.dumps({"text": "x", "labels": each}) for each in (["a"], value)]
    path = written(tmp_path / "a.jsonl", "\n".join(lines))
    with pytest.raises(UserError, match=message):
        items(path, "multi_label")
    assert len(items(path, "multi_label", bad_items="skip")) == 1


def test_labels_without_names_that_can_be_nothing_else_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"text": "x", "labels": [27, 4]}\n')
    assert items(path, "multi_label")[0]["labels"] == ["27", "4"]


def test_labels_of_a_text_stand_in_a_list_or_between_separators(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,labels\nx,"billing, hardware"\ny,\nz,billing\n')
    assert [item["labels"] for item in items(path, "multi_label")] == [
        ["billing", "hardware"], [], ["billing"],
    ]  # fmt: skip
    path = written(tmp_path / "b.jsonl", '{"text": "x", "labels": ["b", "a", "b"]}\n')
    assert items(path, "multi_label")[0]["labels"] == ["a", "b"]
    path = written(tmp_path / "c.csv", "text,label\nx,a|b\n")
    assert items(path, "multi_label", label_separator="|")[0]["labels"] == ["a", "b"]


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


CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
Blackburn NNP I-NP I-PER
"""


def test_columns_of_conll_in_any_number_parted_by_spaces_or_tabs(tmp_path: Path) -> None:
    path = written(tmp_path / "eng.testa", CONLL_2003)
    assert items(path, "tagging") == [
        {"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"words": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]},
    ]
    assert items(path, "tagging", label_column="2")[0]["tags"] == ["NNP", "VBZ"]
    tabs = "# text = New York\n1\tNew York\tX\tB-LOC\n2\t#\tX\tO\n\n\n3\t!\tX\tO\n"
    path = written(tmp_path / "a.conll", tabs)
    assert items(path, "tagging", text_column="2") == [
        {"words": ["New York", "#"], "tags": ["B-LOC", "O"]},
        {"words": ["!"], "tags": ["O"]},
    ]


def test_a_word_that_begins_like_a_comment_is_one_where_its_tag_is(tmp_path: Path) -> None:
    lines = "# sent_id = 1\n# O\n1 O\nstreet B-X\n\n# note\n# = O\n# B-X\n\n# 2\nx O\n"
    path = written(tmp_path / "a.conll", lines)
    assert [(item["words"], item["tags"]) for item in items(path, "tagging")] == [
        (["#", "1", "street"], ["O", "O", "B-X"]), (["#"], ["B-X"]), (["x"], ["O"]),
    ]  # fmt: skip
    tabs = written(tmp_path / "b.conll", "# text = # x\n# x\tO\ny\tO\n\n# newdoc\nz\tO\n")
    assert [item["words"] for item in items(tabs, "tagging")] == [["# x", "y"], ["z"]]


def test_a_word_of_conll_without_a_tag_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "one\tO\ntwo\t\n")
    with pytest.raises(UserError, match=r"line 2 of .* must hold a tag for its word, found none"):
        items(path, "tagging")


def test_a_line_of_conll_with_another_number_of_columns_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "one X O\ntwo O\n")
    with pytest.raises(UserError, match=r"line 2 of .* must hold 3 columns .*found 2: 'two O'"):
        items(path, "tagging")
    with pytest.raises(UserError, match=r"by its number from 1 to 2, found 'ner'"):
        items(written(tmp_path / "b.conll", "one O\n"), "tagging", label_column="ner")


def test_words_and_tags_of_lines_of_json(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O", "B-V"]}\n')
    assert items(path, "tagging") == [{"words": ["a", "b"], "tags": ["O", "B-V"]}]
    path = written(tmp_path / "c.jsonl", '{"tokens": ["a", "b"], "ner_tags": [0, 3]}\n')
    with pytest.raises(UserError, match=r"have the names of its tags, .*the number 0 in line"):
        items(path, "tagging")
    path = written(tmp_path / "d.jsonl", '{"tokens": ["a", "b"], "ner_tags": ["O", null]}\n')
    with pytest.raises(UserError, match="have a tag for every word, found none for 'b' in line 1"):
        items(path, "tagging")
    path = written(tmp_path / "b.jsonl", '{"tokens": ["a", "b"], "ner_tags": [0]}\n')
    with pytest.raises(UserError, match="have a tag for every word, found 1 for 2 in line 1"):
        items(path, "tagging")


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
    with pytest.raises(UserError, match="must be of SQuAD's structure"):
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


def test_a_family_says_which_files_it_reads(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in .csv, .tsv, .jsonl or"):
        items(written(tmp_path / "a.json", "{}"), "classification")
    with pytest.raises(UserError, match=r"must end in .json, .jsonl or .parquet"):
        items(written(tmp_path / "a.csv", "x"), "question_answering")


@pytest.mark.parametrize(
    ("name", "task", "settings", "count"),
    [
        ("glue/MRPC/train.tsv", "classification", {}, 3667),
        ("glue/SST-2/dev.tsv", "classification", {}, 872),
        ("glue/CoLA/train.tsv", "classification", {"text_column": "4", "label_column": "2"}, 8551),
        ("glue/STS-B/train.tsv", "regression", {}, 5749),
        ("ner/wnut17train.conll", "tagging", {}, 3394),
        ("squad/dev-sample-v1.1.json", "question_answering", {}, 2145),
        (
            "multiple_choice/codah.tsv", "multiple_choice",
            {"text_column": "2", "label_column": "7", "choice_columns": ("3", "4", "5", "6")}, 2776,
        ),
        ("multiple_choice/swag_sample_val.csv", "multiple_choice", {}, 20),
    ],
)  # fmt: skip
def test_published_files_are_read_whole(
    name: str, task: str, settings: dict[str, Any], count: int
) -> None:
    assert len(items(real(name), task, **settings)) == count
