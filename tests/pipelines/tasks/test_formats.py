"""Labelled texts in the formats people have, and published files of all families."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.errors import UserError
from tests.pipelines.tasks.labelled_lines import items, written

DATA = Path("../shared/data")


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
        (["0", "1", "0"], "not a row of zeros and ones"),
        ("0,1,0", "not a row of zeros and ones"),
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
    path = written(tmp_path / "a.csv", 'text,labels\nx,"0,1"\n')
    assert items(path, "multi_label")[0]["labels"] == ["0", "1"]


def test_labels_of_a_text_stand_in_a_list_or_between_separators(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", 'text,labels\nx,"billing, hardware"\ny,\nz,billing\n')
    assert [item["labels"] for item in items(path, "multi_label")] == [
        ["billing", "hardware"], [], ["billing"],
    ]  # fmt: skip
    path = written(tmp_path / "b.jsonl", '{"text": "x", "labels": ["b", "a", "b"]}\n')
    assert items(path, "multi_label")[0]["labels"] == ["a", "b"]
    path = written(tmp_path / "c.csv", "text,label\nx,a|b\n")
    assert items(path, "multi_label", label_separator="|")[0]["labels"] == ["a", "b"]


def test_a_family_says_which_files_it_reads(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a CSV, TSV, JSONL or"):
        items(written(tmp_path / "a.json", "{}"), "classification")
    with pytest.raises(UserError, match=r"is not a file of SQuAD's JSON, JSONL or Parquet"):
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
